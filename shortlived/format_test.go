package shortlived

import (
	"bytes"
	"testing"
)

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "A", "Avalue", "42", "-0", "B", "A42"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if back, ok := Decode(Encode(data)); !ok || !bytes.Equal(back, data) {
			t.Fatalf("%q came back as %q, %v", data, back, ok)
		}
		if value, ok := Decode(data); ok && data[0] != FormatA {
			if _, isCount := ParseCount(value); !isCount {
				t.Fatalf("%q was read as %q", data, value)
			}
		}
	})
}
