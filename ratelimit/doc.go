// Package ratelimit limits how much each client may ask of an application in
// a stretch of time. It is plain net/http middleware over a store that any
// number of gateways can share.
//
// # Model
//
// A Limiter applies zones to a request. A zone has a name, a window, a number
// of events, and a rule for the client that is counted. All zones of a request
// are one decision of the store: the request is admitted only if every zone
// admits it, and only then charged, to all of them.
//
// # Guarantees
//
//   - Windows are aligned to the Unix epoch of the store's clock: the same
//     instants on every gateway, whatever the gateways' own clocks say. In one
//     window a zone never admits more than its events for a client, over all
//     gateways. (In an interval of a window's length that crosses an edge it
//     can admit up to twice that.)
//   - A refused request is charged nowhere and writes nothing.
//   - A client that waits as long as Retry-After says, and is alone, gets in.
//   - Keys and addresses reach the store only as keyed hashes.
//   - A store that fails never reads as "no limit" unless the configuration
//     says Allow. Every request has its answer within the store's timeout, and
//     while the store stays away nearly all have it at once.
//
// # Limits
//
// Counts are as durable as their store. A request whose store call failed
// because the reply was lost may have been charged. With Local, at most a
// zone's events more are admitted on each gateway at each change between the
// store and the local table. A refusal is remembered until its window ends:
// counts that are deleted in the store by hand take effect then.
package ratelimit
