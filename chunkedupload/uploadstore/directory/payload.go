package directory

import (
	"encoding/json"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// text is a string of any bytes in JSON: plain where it is UTF-8, else an
// object with its base64. Header fields and names come from clients.
type text string

type rawText struct {
	Base64 []byte `json:"base64"`
}

func (t text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(rawText{[]byte(t)})
}

func (t *text) UnmarshalJSON(b []byte) error {
	var plain string
	if err := json.Unmarshal(b, &plain); err == nil {
		*t = text(plain)
		return nil
	}
	var raw rawText
	err := json.Unmarshal(b, &raw)
	*t = text(raw.Base64)
	return err
}

// storedInfo is the form of the file info. Token tells a creator whose rename
// was answered wrongly (a repeated call on NFS) that the file is its own.
type storedInfo struct {
	Token       string    `json:"token"`
	ID          string    `json:"id"`
	Site        text      `json:"site"`
	Owner       text      `json:"owner,omitempty"`
	Protocol    text      `json:"protocol"`
	Length      int64     `json:"length"`
	ChunkSize   int64     `json:"chunk_size,omitempty"`
	Metadata    text      `json:"metadata,omitempty"`
	Filename    text      `json:"filename,omitempty"`
	ContentType text      `json:"content_type,omitempty"`
	Method      text      `json:"method,omitempty"`
	Host        text      `json:"host,omitempty"`
	URI         text      `json:"uri,omitempty"`
	Header      []field   `json:"header,omitempty"`
	Created     time.Time `json:"created"`
	Attributes  []pair    `json:"attributes,omitempty"`
}

type field struct {
	Name   text   `json:"name"`
	Values []text `json:"values"`
}

type pair struct {
	Name  text `json:"name"`
	Value text `json:"value"`
}

func encodeInfo(info uploadstore.Info, token string) ([]byte, error) {
	return json.Marshal(storedInfo{
		Token: token, ID: info.ID, Site: text(info.Site), Owner: text(info.Owner),
		Protocol: text(info.Protocol), Length: info.Length, ChunkSize: info.ChunkSize,
		Metadata: text(info.Metadata), Filename: text(info.Filename), ContentType: text(info.ContentType),
		Method: text(info.Target.Method), Host: text(info.Target.Host), URI: text(info.Target.URI),
		Header: encodeHeader(info.Target.Header), Created: info.Created, Attributes: encodePairs(info.Attributes),
	})
}

func decodeInfo(b []byte) (info uploadstore.Info, token string, err error) {
	var s storedInfo
	if err := json.Unmarshal(b, &s); err != nil {
		return info, "", err
	}
	return uploadstore.Info{
		ID: s.ID, Site: string(s.Site), Owner: string(s.Owner), Protocol: string(s.Protocol),
		Length: s.Length, ChunkSize: s.ChunkSize, Metadata: string(s.Metadata), Filename: string(s.Filename),
		ContentType: string(s.ContentType),
		Target:      uploadstore.Target{Method: string(s.Method), Host: string(s.Host), URI: string(s.URI), Header: decodeHeader(s.Header)},
		Created:     s.Created, Attributes: decodePairs(s.Attributes),
	}, s.Token, nil
}

// storedOutcome is the form of the file outcome.
type storedOutcome struct {
	State       string    `json:"state"`
	Status      int       `json:"status,omitempty"`
	Header      []field   `json:"header,omitempty"`
	Body        []byte    `json:"body,omitempty"`
	BodyDropped bool      `json:"body_dropped,omitempty"`
	Time        time.Time `json:"time"`
}

func encodeOutcome(o uploadstore.Outcome) ([]byte, error) {
	return json.Marshal(storedOutcome{string(o.State), o.Status, encodeHeader(o.Header), o.Body, o.BodyDropped, o.Time})
}

func decodeOutcome(b []byte) (uploadstore.Outcome, error) {
	var s storedOutcome
	err := json.Unmarshal(b, &s)
	return uploadstore.Outcome{State: uploadstore.State(s.State), Status: s.Status, Header: decodeHeader(s.Header),
		Body: s.Body, BodyDropped: s.BodyDropped, Time: s.Time}, err
}

func encodeHeader(h http.Header) []field {
	fields := make([]field, 0, len(h))
	for name, values := range h {
		f := field{Name: text(name), Values: make([]text, len(values))}
		for i, v := range values {
			f.Values[i] = text(v)
		}
		fields = append(fields, f)
	}
	return fields
}

func decodeHeader(fields []field) http.Header {
	if len(fields) == 0 {
		return nil
	}
	h := make(http.Header, len(fields))
	for _, f := range fields {
		for _, v := range f.Values {
			h[string(f.Name)] = append(h[string(f.Name)], string(v))
		}
	}
	return h
}

func encodePairs(m map[string]string) []pair {
	pairs := make([]pair, 0, len(m))
	for k, v := range m {
		pairs = append(pairs, pair{text(k), text(v)})
	}
	return pairs
}

func decodePairs(pairs []pair) map[string]string {
	if len(pairs) == 0 {
		return nil
	}
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		m[string(p.Name)] = string(p.Value)
	}
	return m
}
