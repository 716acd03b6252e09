package sessionauth

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/sessionstore"
)

// CommandSet says which commands a backend may send.
type CommandSet uint8

// The commands, as bits.
const (
	CommandStart CommandSet = 1 << iota
	CommandUpdate
	CommandEnd
	CommandEvent

	AllCommands = CommandStart | CommandUpdate | CommandEnd | CommandEvent
)

// maxCommand bounds the JSON of a command, in bytes.
const maxCommand = 8 << 10

// The commands of the backend, by their place in rawCommands.
const (
	fieldStart = iota
	fieldUpdate
	fieldEnd
	fieldEvent
	fields
)

var commandFields = [fields]string{
	"Gatehouse-Session-Start", "Gatehouse-Session-Update", "Gatehouse-Session-End", "Gatehouse-Event",
}

// rawCommands are the values of the command fields of a response.
type rawCommands [fields][]string

// takeCommands removes the namespace from a response's header and returns the
// commands that were in it. ok is false where there were none.
func takeCommands(h http.Header) (raw rawCommands, ok bool) {
	for name, values := range h {
		if name == "" || name[0]|0x20 != 'g' || !IsReserved(name) {
			continue
		}
		for i, field := range commandFields {
			if strings.EqualFold(name, field) {
				raw[i] = append(raw[i], values...)
				ok = ok || len(values) > 0
			}
		}
		delete(h, name)
	}
	stripAnnounced(h)
	return raw, ok
}

// endScope is what an end command is about.
type endScope uint8

const (
	endNothing endScope = iota
	endCurrent
	endOthers
	endUser
	endOne // a session by its public id
)

// commands are what a backend asked for.
type commands struct {
	start  *startCommand
	update *updateCommand
	end    endScope
	endID  sessionstore.ID // with endOne
}

type startCommand struct {
	user       string
	claims     []byte
	persistent bool
}

type updateCommand struct {
	claims []byte // nil: unchanged
	rotate bool
}

// parseCommands reads the commands of one response and checks each by itself
// and all together. signedIn says whether the request has a session.
func parseCommands(raw rawCommands, allowed CommandSet, signedIn bool) (c commands, err error) {
	for i, values := range raw {
		if len(values) == 0 {
			continue
		}
		if len(values) > 1 {
			return c, fmt.Errorf("%s stands %d times", commandFields[i], len(values))
		}
		if allowed&(1<<i) == 0 {
			return c, fmt.Errorf("%s is not allowed here", commandFields[i])
		}
		if len(values[0]) > maxCommand {
			return c, fmt.Errorf("%s has %d bytes, more than %d", commandFields[i], len(values[0]), maxCommand)
		}
		if err := c.parse(i, values[0]); err != nil {
			return c, fmt.Errorf("%s: %w", commandFields[i], err)
		}
	}
	return c, c.check(signedIn)
}

func (c *commands) parse(field int, value string) (err error) {
	switch field {
	case fieldStart:
		c.start, err = parseStart(value)
	case fieldUpdate:
		c.update, err = parseUpdate(value)
	case fieldEnd:
		c.end, c.endID, err = parseEnd(value)
	case fieldEvent:
		err = errors.New("no place for events is configured") // an event may not get lost
	}
	return err
}

// check refuses commands that contradict each other or the request.
func (c *commands) check(signedIn bool) error {
	switch {
	case c.start != nil && c.update != nil:
		return errors.New("start and update contradict each other")
	case (c.start != nil || c.update != nil) && c.end != endNothing && c.end != endOthers:
		return errors.New("only the end of others goes with start and update")
	case c.update != nil && !signedIn:
		return errors.New("update without a session")
	}
	return nil
}

func parseStart(value string) (*startCommand, error) {
	c := &startCommand{claims: []byte("{}")}
	err := readObject(value, func(name, raw string) (err error) {
		switch name {
		case "user":
			c.user, err = readString(raw)
		case "claims":
			c.claims, err = readClaims(raw)
		case "persistent":
			c.persistent, err = readBool(raw)
		default:
			err = errUnknownMember
		}
		return err
	})
	if err == nil {
		err = checkUser(c.user)
	}
	return c, err
}

func parseUpdate(value string) (*updateCommand, error) {
	c := new(updateCommand)
	return c, readObject(value, func(name, raw string) (err error) {
		switch name {
		case "claims":
			c.claims, err = readClaims(raw)
		case "rotate":
			c.rotate, err = readBool(raw)
		default:
			err = errUnknownMember
		}
		return err
	})
}

var errUnknownMember = errors.New("unknown")

// readClaims checks claims and returns them without space between their parts.
func readClaims(raw string) ([]byte, error) {
	if raw[0] != '{' {
		return nil, errors.New("not a JSON object")
	}
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(raw)); err != nil {
		return nil, err
	}
	if b.Len() > maxClaims {
		return nil, fmt.Errorf("%d bytes, more than %d", b.Len(), maxClaims)
	}
	return b.Bytes(), nil
}

// checkUser refuses users that are empty, too long or hold control characters.
// That they are UTF-8 was checked with the JSON.
func checkUser(user string) error {
	if user == "" || len(user) > maxUser {
		return fmt.Errorf("a user of %d bytes, want 1 to %d", len(user), maxUser)
	}
	if strings.ContainsFunc(user, unicode.IsControl) {
		return errors.New("a user with control characters")
	}
	return nil
}

func parseEnd(value string) (endScope, sessionstore.ID, error) {
	switch value {
	case "current":
		return endCurrent, sessionstore.ID{}, nil
	case "others":
		return endOthers, sessionstore.ID{}, nil
	case "user":
		return endUser, sessionstore.ID{}, nil
	}
	id, err := parseID(value)
	if err != nil {
		return endNothing, id, errors.New("neither current, others, user nor a session id")
	}
	return endOne, id, nil
}

// parseID reads a public id as formatID writes it.
func parseID(text string) (id sessionstore.ID, err error) {
	if len(text) != base64.RawURLEncoding.EncodedLen(len(id)) {
		return id, errors.New("not the length of an id")
	}
	_, err = base64.RawURLEncoding.Strict().Decode(id[:], []byte(text))
	return id, err
}

// formatID writes a public id: base64url without padding.
func formatID(id sessionstore.ID) string { return base64.RawURLEncoding.EncodeToString(id[:]) }
