// Package chunkedupload receives uploads that may break off and go on, and
// hands each finished one to the application as a single ordinary request. It
// is net/http middleware: requests that are no upload protocol pass through
// untouched.
//
// # Model
//
// An upload is created, filled, delivered and has one outcome. Its bytes, the
// right to deliver it and its outcome lie in a store that any number of
// gateways share (package uploadstore), so that any request may reach any
// gateway. What one process knows beyond that, the deliveries that it runs, is
// in Shared, and only saves work.
//
//	open ──all bytes──> held ──claim──> running ──answer──> done
//	  ^                   ^               │ │
//	  └──────bytes────────└──no answer────┘ └──lost──> interrupted
//
// # Guarantees
//
//   - Acknowledged bytes are durable, and an offset once shown never goes down.
//   - No client is told of a success that the application did not confirm. A tus
//     client is shown at most length-1 until the outcome is stored: it sends the
//     last byte again and so joins the delivery, starts it anew, or is given the
//     outcome.
//   - One gateway delivers at a time. The first outcome counts and is every
//     later answer.
//   - The application sees an upload a second time only when it did not answer
//     the first one for certain: it could not be reached, or answered 408, 425,
//     429 or 502 to 504. Every delivery carries Idempotency-Key: <upload id>.
//   - When nobody can tell whether the application got the request, the upload
//     ends as interrupted.
//   - Memory per upload is constant; bodies stream.
//
// # Limits
//
//   - An upload belongs to the signed-in user who made it. Without a session it
//     belongs to whoever has its unguessable URL.
//   - Identity headers (Gatehouse-*) of the completing request are handed on as
//     they arrive here: whatever stands before this handler must strip those
//     that clients send.
//   - A repeated POST of an empty upload joins the first one through this
//     process's memory only, and for ten minutes.
//   - net/http's Transport may by itself repeat a delivery without a body (an
//     empty upload) on a connection that was lost, since it carries an
//     Idempotency-Key.
//
// # Protocols
//
// tus 1.0.0 with creation, creation-with-upload and termination
// (https://tus.io/protocols/resumable-upload). Requests are parsed by tusd's
// handler over this package's store adapter; HEAD and OPTIONS are answered
// here.
package chunkedupload
