package caddymodule

import (
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// modules are all that this project adds to Caddy.
var modules = []caddy.Module{
	new(App),
	new(Guard), SessionAuth{}, ClientRateLimit{}, ChunkedUpload{},
	MatchSession{},
	MemoryStore{}, RedisStore{},
	FileSessionStore{}, RedisSessionStore{},
	DirectoryKeyRing{},
	DirectoryUploadStore{},
	Admin{},
}

func init() {
	for _, m := range modules {
		caddy.RegisterModule(m)
	}
	httpcaddyfile.RegisterGlobalOption("gatehouse", parseGlobalOption)

	httpcaddyfile.RegisterHandlerDirective("gatehouse_guard", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		g := new(Guard)
		return g, g.UnmarshalCaddyfile(h.Dispenser)
	})
	httpcaddyfile.RegisterHandlerDirective("session_auth", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return parseSessionAuth(h)
	})
	httpcaddyfile.RegisterHandlerDirective("client_rate_limit", parseClientRateLimit)
	httpcaddyfile.RegisterDirective("chunked_upload", parseChunkedUpload)

	// Each stands before request_header, in this sequence: behind basic_auth and
	// forward_auth, before everything that answers. The guard comes first of all.
	httpcaddyfile.RegisterDirectiveOrder("gatehouse_guard", httpcaddyfile.Before, "tracing")
	for _, name := range []string{"session_auth", "client_rate_limit", "chunked_upload"} {
		httpcaddyfile.RegisterDirectiveOrder(name, httpcaddyfile.Before, "request_header")
	}
}
