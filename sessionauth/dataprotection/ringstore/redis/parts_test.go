package redis

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore"
)

func TestCompact(t *testing.T) {
	for in, want := range map[string]string{
		"<a/>":                                 "<a/>",
		"\ufeff<?xml version=\"1.0\"?>\n<a />": "<a />",
		"<!-- x -->\n<a />\n<!-- y -->\n":      "<a />",
		"<a>\n  <b>text</b>\n</a>":             "<a><b>text</b></a>",
		"<a>\r\n\t<b />\r\n</a>":               "<a><b /></a>",
		"<a>\n  <!-- c -->\n  <b />\n</a>":     "<a><!-- c --><b /></a>",
		"<a>\n</a>":                            "<a>\n</a>",
		"<a> <b /></a>":                        "<a> <b /></a>",
		"<a>&#10;<b /></a>":                    "<a>&#10;<b /></a>",
		"<a><b>two\nlines </b></a>":            "<a><b>two\nlines </b></a>",
		"<a><![CDATA[\n]]></a>":                "<a><![CDATA[\n]]></a>",
		"<p:a x='1'  xmlns:p=\"u\"\n>é</p:a>":  "<p:a x='1'  xmlns:p=\"u\"\n>é</p:a>",
	} {
		if got, err := compact([]byte(in)); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
	for _, bad := range []string{"", "\n", "a", "<a>", "<a></b>", "<a/><b/>", "<a/>x", "x<a/>", "<!DOCTYPE a><a/>", "<a>&x;</a>"} {
		if got, err := compact([]byte(bad)); !errors.Is(err, errNotAnElement) {
			t.Errorf("%q: %q, %v", bad, got, err)
		}
	}
}

// indentation is what .NET's writer puts between tags in a file, and leaves
// out in a list.
var indentation = regexp.MustCompile(`>\n *<`)

func TestCompactOfRealKeys(t *testing.T) {
	n := 0
	for _, name := range []string{"real-default-aes256cbc-hmacsha256.json", "real-aes128gcm.json", "real-multikey-revocation.json"} {
		for _, file := range readVectors(t, name).Keyring {
			_, element, _ := strings.Cut(file.XML, "?>\n")
			want := indentation.ReplaceAllString(element, "><")
			got, err := compact([]byte("\ufeff" + file.XML))
			if err != nil || string(got) != want || strings.Contains(want, "\n") {
				t.Errorf("%s: %v\n got %s\nwant %s", file.File, err, got, want)
			}
			n++
		}
	}
	if n < 5 {
		t.Errorf("only %d elements", n)
	}
}

func FuzzCompact(f *testing.F) {
	for _, seed := range []string{"<a>\n  <b> </b>\n</a>", "<?xml?><a x=\"1\"/>", "<a><![CDATA[\n]]>\n<!-- -->&amp;</a>", "<a/><b/>"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		once, err := compact(document)
		if err != nil {
			return
		}
		if once[0] != '<' || once[len(once)-1] != '>' || len(once) > len(document) {
			t.Errorf("%q became %q", document, once)
		}
		twice, err := compact(once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%q: %q and then %q, %v", document, once, twice, err)
		}
	})
}

func TestParseList(t *testing.T) {
	elements, err := parseList([]byte("*2\r\n$3\r\na\r\n\r\n$0\r\n\r\n"))
	if err != nil || len(elements) != 2 || string(elements[0].XML) != "a\r\n" || len(elements[1].XML) != 0 {
		t.Errorf("%v, %v", elements, err)
	}
	for reply, want := range map[string]error{
		"":                                errReply,
		"*":                               errReply,
		"\r\n":                            errReply,
		"*1\r\n":                          errReply,
		"*-1\r\n":                         errReply,
		"*x\r\n":                          errReply,
		"*0\r\nmore":                      errReply,
		"$2\r\nok\r\n":                    errReply,
		"+OK\r\n":                         errReply,
		"*1\r\n:1\r\n":                    errReply,
		"*1\r\n$-1\r\n":                   errReply,
		"*1\r\n$3\r\nab\r\n":              errReply,
		"*1\r\n$2\r\nabcd":                errReply,
		"*1\r\n$2147483647\r\na\r\n":      errReply,
		"*1\r\n$99999999999999\r\na\r\n":  errReply,
		"*10001\r\n":                      ErrTooLarge,
		"-WRONGTYPE Operation\r\n":        ErrNotAList,
		"-LOADING Redis is loading\r\n":   ringstore.ErrUnavailable,
		"-MOVED 866 10.0.0.1:6379\r\n":    ringstore.ErrUnavailable,
		"*1\r\n-NOPERM in the middle\r\n": ErrForbidden,
	} {
		if elements, err := parseList([]byte(reply)); !errors.Is(classify(err), want) || elements != nil {
			t.Errorf("%q: %v, %v, want %v", reply, elements, err, want)
		}
	}
}

func FuzzParseList(f *testing.F) {
	for _, seed := range []string{"*1\r\n$3\r\nabc\r\n", "*0\r\n", "-ERR no\r\n", "*2\r\n$0\r\n\r\n$1\r\na\r\n", "*9999\r\n$"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		elements, err := parseList(reply)
		if err != nil && elements != nil {
			t.Error("both elements and an error")
		}
		size := 0
		for _, element := range elements {
			size += len(element.XML) + len("$0\r\n\r\n")
		}
		if size > len(reply) {
			t.Errorf("%d bytes of %d", size, len(reply))
		}
	})
}

func TestClassify(t *testing.T) {
	for text, want := range map[string]error{
		"LOADING Redis is loading the dataset in memory":                                ringstore.ErrUnavailable,
		"MISCONF Redis is configured to save RDB snapshots":                             ringstore.ErrUnavailable,
		"CLUSTERDOWN The cluster is down":                                               ringstore.ErrUnavailable,
		"ERR max number of clients reached":                                             ringstore.ErrUnavailable,
		"NOPERM this user has no permissions to run the 'lrange' command":               ErrForbidden,
		"ERR The user executing the script can't run this command or subcommand script": ErrForbidden,
		"NOAUTH Authentication required.":                                               ErrSignIn,
		"READONLY You can't write against a read only replica.":                         ErrReadOnly,
		"OOM command not allowed when used memory > 'maxmemory'.":                       ErrFull,
	} {
		if err := classify(serverError(text)); !errors.Is(err, want) || errors.Is(err, errUnknownOutcome) {
			t.Errorf("%s: %v", text, err)
		}
	}
	err := classify(serverError("ERR unknown command 'EVAL', with args beginning with: '<key>secret'"))
	if err == nil || errors.Is(err, ringstore.ErrUnavailable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("an unknown command: %v", err)
	}
	if classify(nil) != nil || !errors.Is(classify(redis.ErrClosed), ringstore.ErrUnavailable) {
		t.Error("nil or a closed client")
	}
}
