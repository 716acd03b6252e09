package chunkedupload_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/gatehouse-gateway/gatehouse/chunkedupload"
	"github.com/gatehouse-gateway/gatehouse/chunkedupload/uploadstore/directory"
)

// An application gets each finished upload as one ordinary request.
func Example() {
	path, err := os.MkdirTemp("", "uploads")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(path)
	store, err := directory.Open(directory.Options{Path: path})
	if err != nil {
		panic(err)
	}
	defer store.Close()

	uploads, err := chunkedupload.New(chunkedupload.Config{Store: store, Base: "/files"})
	if err != nil {
		panic(err)
	}
	uploads.Start()
	defer uploads.Close()

	application := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(r.Method, r.URL.Path, r.Header.Get("Content-Type"), string(body))
		w.WriteHeader(http.StatusCreated)
	})
	server := httptest.NewServer(uploads.Wrap(application))
	defer server.Close()

	request, err := http.NewRequest("POST", server.URL+"/files", strings.NewReader("hello"))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Tus-Resumable", "1.0.0")
	request.Header.Set("Content-Type", "application/offset+octet-stream")
	request.Header.Set("Upload-Length", "5")
	request.Header.Set("Upload-Metadata", "filetype dGV4dC9wbGFpbg==")
	response, err := server.Client().Do(request)
	if err != nil {
		panic(err)
	}
	response.Body.Close()
	fmt.Println(response.StatusCode, response.Header.Get("Upload-Offset"))
	// Output:
	// POST /files text/plain hello
	// 201 5
}
