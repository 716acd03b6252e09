package chunkedupload

import (
	"encoding/base64"
	"errors"
	"mime"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of Upload-Metadata and of what is taken from it.
const (
	maxMetadataBytes    = 4 << 10
	maxMetadataKeys     = 64
	maxFilenameBytes    = 255
	maxContentTypeBytes = 255
)

const defaultContentType = "application/octet-stream"

var errBadMetadata = errors.New("bad Upload-Metadata")

// parseMetadata reads Upload-Metadata (tus 1.0.0, creation): pairs of a key
// and a base64 value, which may be left out, separated by commas. White space
// around pairs is allowed, since some clients send it.
func parseMetadata(field string) (map[string]string, error) {
	pairs := make(map[string]string)
	if strings.TrimSpace(field) == "" {
		return pairs, nil
	}
	if len(field) > maxMetadataBytes {
		return nil, errBadMetadata
	}
	for pair := range strings.SplitSeq(field, ",") {
		key, value, err := parsePair(strings.Trim(pair, " \t"))
		if err != nil {
			return nil, err
		}
		if _, ok := pairs[key]; ok || len(pairs) == maxMetadataKeys {
			return nil, errBadMetadata
		}
		pairs[key] = value
	}
	return pairs, nil
}

func parsePair(pair string) (key, value string, err error) {
	key, encoded, _ := strings.Cut(pair, " ")
	if key == "" || strings.ContainsFunc(key, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return "", "", errBadMetadata
	}
	raw, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") { // the decoder skips line breaks
		return "", "", errBadMetadata
	}
	return key, string(raw), nil
}

// firstOf returns the first value that is not empty.
func firstOf(pairs map[string]string, keys ...string) string {
	for _, key := range keys {
		if v := pairs[key]; v != "" {
			return v
		}
	}
	return ""
}

// contentType makes a media type of what the client declared.
func contentType(declared string) string {
	if declared == "" || len(declared) > maxContentTypeBytes {
		return defaultContentType
	}
	media, params, err := mime.ParseMediaType(declared)
	if err != nil || !strings.Contains(media, "/") {
		return defaultContentType
	}
	if formatted := mime.FormatMediaType(media, params); formatted != "" {
		return formatted
	}
	return defaultContentType
}

// filename makes a plain name of what the client declared: no path, nothing
// that cannot be seen, at most 255 bytes of UTF-8. Empty: there is none.
func filename(declared string) string {
	name := declared[strings.LastIndexAny(declared, `/\`)+1:]
	name = strings.Map(func(c rune) rune {
		if c == utf8.RuneError || unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || unicode.Is(unicode.Zl, c) || unicode.Is(unicode.Zp, c) {
			return -1
		}
		return c
	}, name)
	name = strings.TrimSpace(name)
	for len(name) > maxFilenameBytes {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	if strings.Trim(name, ". ") == "" {
		return ""
	}
	return name
}

// contentDisposition is the field for a file of that name: a quoted string in
// ASCII for old readers, and the whole name in UTF-8 (RFC 6266, section 4.3;
// RFC 8187, section 3.2).
func contentDisposition(declared string) string {
	name := filename(declared)
	if name == "" {
		return "attachment"
	}
	plain := strings.Map(func(c rune) rune {
		// A percent sign is decoded by some readers, a quote ends the string.
		if c > '~' || c == '"' || c == '%' {
			return '_'
		}
		return c
	}, name)
	return `attachment; filename="` + plain + `"; filename*=UTF-8''` + encodeExtValue(name)
}

// encodeExtValue writes value-chars of RFC 8187, section 3.2.1.
func encodeExtValue(s string) string {
	// PathEscape leaves some characters that attr-char does not have.
	return strings.NewReplacer(":", "%3A", "=", "%3D", "@", "%40").Replace(url.PathEscape(s))
}
