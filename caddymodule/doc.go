// Package caddymodule brings Gatehouse into Caddy. It is the only package of
// this module that imports Caddy, zap or Prometheus, and it decides nothing:
// it reads configuration, sets up the features (sessionauth, ratelimit,
// chunkedupload) with their stores, and translates between them and Caddy.
//
// Modules:
//
//	gatehouse                              the app and the global option
//	http.handlers.session_auth             sessions in front of any application
//	http.handlers.client_rate_limit        limits for each client
//	http.handlers.chunked_upload           resumable uploads
//	http.handlers.gatehouse_guard          keeps the Gatehouse-* namespace clean
//	http.matchers.session                  matches by session and claims
//	gatehouse.stores.memory, .redis        limits and short-lived values
//	gatehouse.session_stores.file, .redis  session records
//	gatehouse.key_rings.directory          the keys that protect cookies
//	gatehouse.upload_stores.directory      uploads
//	admin.api.gatehouse                    admin routes
//
// Placeholders: {http.auth.user.id}, {http.auth.user.<claim>},
// {http.session_auth.id}, {http.session_auth.state},
// {http.session_auth.claims.<dot path>}, {http.client_rate_limit.zone},
// {http.gatehouse.error_code}.
//
// Events: session_started, session_ended (with reason), limit_exceeded,
// upload_completed, upload_interrupted.
//
// Metrics begin with gatehouse_ and carry labels from the configuration only.
package caddymodule
