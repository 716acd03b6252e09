package directory

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore"
)

// childVariable makes the test binary a gateway that writes until it is killed.
const childVariable = "GATEHOUSE_TEST_DIRECTORY"

const killedID = "killed_upload_0000000000000000-_"

// pattern is the content of the killed gateway's upload.
func pattern(from, to int64) []byte {
	b := make([]byte, to-from)
	for i := range b {
		at := from + int64(i)
		b[i] = byte(at ^ at>>9 ^ at>>17)
	}
	return b
}

// writeUntilKilled writes the upload and prints each offset that it may
// acknowledge.
func writeUntilKilled(path string) {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	s, err := Open(Options{Path: path})
	check(err)
	u, err := s.Open(context.Background(), killedID)
	check(err)
	status, err := u.Status(context.Background())
	check(err)
	w, err := u.Write(context.Background(), uploadstore.WriteOptions{Offset: status.Offset(), Patience: 10 * time.Second})
	check(err)
	fmt.Println("began", status.Offset())
	for at := status.Offset(); ; {
		_, err = w.Write(pattern(at, at+70_001))
		check(err)
		at, err = w.Commit(context.Background())
		check(err)
		fmt.Println(at)
	}
}

// Gateways are killed one after the other; each goes on where the one before
// ended, within seconds, and no acknowledged byte is lost.
func TestKilledGatewaysLoseNothing(t *testing.T) {
	t.Parallel()
	path := t.TempDir()
	s := testStore(t, Options{Path: path})
	u, err := s.Create(t.Context(), uploadstore.Info{ID: killedID, Length: uploadstore.UnknownLength, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	acked := int64(0)
	for round := range 2 {
		acked = killOne(t, path, acked, 5+round*7)
		status, err := u.Status(t.Context())
		if err != nil || status.Offset() < acked {
			t.Fatalf("offset %d, %v; acknowledged %d", status.Offset(), err, acked)
		}
	}
	began := time.Now()
	status, err := u.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w, err := u.Write(t.Context(), uploadstore.WriteOptions{Offset: status.Offset(), Patience: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("continued %v after the kill", time.Since(began))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := u.Reader(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, pattern(0, status.Offset())) {
		t.Fatalf("%d bytes differ from what was sent (%v)", len(got), err)
	}
}

// killOne kills a gateway with SIGKILL after some commits and returns the last
// offset that it acknowledged.
func killOne(t *testing.T, path string, acked int64, commits int) int64 {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		if from, ok := strings.CutPrefix(lines.Text(), "began "); ok {
			if at, _ := strconv.ParseInt(from, 10, 64); at < acked {
				t.Errorf("began at %d, acknowledged %d", at, acked)
			}
			continue
		}
		acked, err = strconv.ParseInt(lines.Text(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if n == commits {
			_ = cmd.Process.Kill()
		}
	}
	_ = cmd.Wait()
	if acked == 0 {
		t.Fatal("the gateway committed nothing")
	}
	return acked
}
