package ratelimit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gatehouse-gateway/gatehouse/ratelimit"
	"github.com/gatehouse-gateway/gatehouse/ratelimit/limitstore/memory"
)

// Two requests a day for each client address, counted in this process.
func Example() {
	shared := ratelimit.NewShared(memory.New(memory.Options{}), ratelimit.SharedOptions{})
	defer shared.Close()
	limiter, err := ratelimit.New(ratelimit.Config{
		Zones:   []ratelimit.Zone{{Name: "daily", Window: 24 * time.Hour, Events: 2}},
		Shared:  shared,
		Headers: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	app := limiter.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) }))

	for range 3 {
		w := httptest.NewRecorder()
		app.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(w.Code, w.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// 204 "daily";q=2;w=86400
	// 204 "daily";q=2;w=86400
	// 429 "daily";q=2;w=86400
}
