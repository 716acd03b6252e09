package dataprotection_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection"
	"github.com/gatehouse-gateway/gatehouse/sessionauth/dataprotection/ringstore/directory"
)

// Any number of processes that share the directory open each other's tokens,
// and so do ASP.NET Core applications with the same application name.
func Example() {
	path, err := os.MkdirTemp("", "keys")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(path)

	ctx := context.Background()
	ring, err := dataprotection.New(dataprotection.Options{
		Repository:      directory.New(path),
		ApplicationName: "shop",
		AutoGenerate:    true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer ring.Close()
	if err := ring.Load(ctx); err != nil {
		log.Fatal(err)
	}

	links := ring.Protector("links", "v1")
	token, err := links.Seal(ctx, []byte("order 17"))
	if err != nil {
		log.Fatal(err)
	}
	text, err := links.Open(ctx, token)
	fmt.Println(token[:5], text, err)

	_, err = ring.Protector("cookies", "v1").Open(ctx, token)
	fmt.Println(errors.Is(err, dataprotection.ErrUnreadable))
	// Output:
	// CfDJ8 order 17 <nil>
	// true
}
