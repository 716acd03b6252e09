// Package sessionauth gives HTTP applications sessions that they need not keep.
// It is plain net/http middleware: requests reach the application with the name
// of the signed-in user in their header, and the application starts, changes
// and ends sessions by header fields of its responses. Any number of gateways
// share the sessions, through a session store and a key ring.
//
// # The model
//
// A session is a record in the store and a token in the client's cookie. The
// token, sealed with the key ring, holds all that a request needs: user, secret
// id, claims, times and the generation. The record is the truth. For
// RefreshAfter a token is believed as it is, without the store. An older one is
// due: the record is looked up once, at the start of the request, and at the
// start of the response one conditional write moves the session to its next
// generation and the client gets a new token. Of simultaneous requests one does
// so; the others send no cookie. The previous generation is accepted for Grace,
// from the same device. A token of any other generation was copied, or its copy
// was used before it: the session is ended.
//
// So the store is asked once per client and RefreshAfter, and what happens
// elsewhere (a sign-out, new claims) is noticed at most RefreshAfter late, in
// the gateway that did it at once. ForceValidate asks for each request.
//
// A session ends when it is not used for its lifetime, at its absolute end, by
// a command, or by a generation that does not fit. An ended session stays
// ended: no refresh under way brings it back.
//
// # To the backend
//
// The names that begin with Gatehouse- are the gateway's (see IsReserved). What
// a client sends under them is removed. With a session:
//
//	Gatehouse-User            the user, percent-encoded outside %x21-7E
//	Gatehouse-Session         the public id: good for logs, no credential
//	Gatehouse-Claims          base64url of a JSON object, without padding
//	Gatehouse-Session-State   active, or stale while an outage is bridged
//
// The token is removed from the Cookie field, other cookies stay as they are.
//
// # From the backend
//
//	Gatehouse-Session-Start: {"user":"u1","claims":{},"persistent":true}
//	Gatehouse-Session-Update: {"claims":{},"rotate":true}
//	Gatehouse-Session-End: current | others | user | <public session id>
//
// Commands are read strictly. One that is malformed, not allowed or impossible
// is answered with 502 in place of the backend's response, and nothing is
// changed. A start or an update that cannot be stored is answered with 503. An
// end that cannot be stored clears the cookie, is kept up in this gateway, is
// tried again until the store takes it, and is answered with 503, so that no
// page says "signed out" before it is true everywhere. On a switch of protocols
// only an end counts. A command in a response that fails does not count. Events
// (Gatehouse-Event) have no place to go yet and are bad commands.
//
// A response that sets or clears the cookie may not be stored by any cache. A
// Set-Cookie of the backend with the same name is dropped then, and passes
// otherwise.
//
// # What is protected
//
//   - Tokens are opaque to clients, and of one site and cookie name: moved
//     elsewhere they are unreadable. All their defects look the same outside.
//   - A copied token works until it is due or until the other holder has
//     refreshed; then the session ends for both.
//   - A start always draws a new id, so nothing planted beforehand is worth
//     anything after it.
//   - Requests from pages of other origins do not act with the session
//     (Route.AllowedOrigins): refused, or, for a plain GET, without it.
//   - A dump of the store has no secret ids in it and makes no tokens.
//
// # What is not
//
//   - The identity fields are not signed: the backend must take requests from
//     the gateway alone.
//   - Request trailers in the namespace, and responses that do not pass through
//     a Middleware, are for a guard around the whole server to clean.
//   - Within RefreshAfter another gateway believes tokens of an ended session.
//   - Gateways' clocks decide when a token is due, so one that lags believes
//     tokens for that much longer; the store's clock decides all else.
//   - An end that could not be stored is forgotten if the gateway dies before
//     the store is back. That is what the 503 says.
//
// # Bounds
//
// Users have 1 to 255 bytes of UTF-8 without control characters, claims at most
// 4 KiB of JSON, commands 8 KiB. A Set-Cookie line stays under 4096 bytes:
// larger claims stay in the store and are read through a cache that is no older
// than RefreshAfter. A gateway keeps up to 4096 opened tokens, 1024 large
// claims, 100,000 ended ids and 10,000 ends that wait for the store.
package sessionauth
