package chunkedupload

import (
	"context"
	"time"
)

// EventKind names what happened to an upload.
type EventKind string

// The kinds of events.
const (
	EventCreated     EventKind = "created"     // an upload was made; Bytes is its length
	EventReceived    EventKind = "received"    // a request brought Bytes, which are durable
	EventDelivering  EventKind = "delivering"  // a delivery began
	EventNoOutcome   EventKind = "no_outcome"  // a delivery ended without an outcome
	EventCompleted   EventKind = "completed"   // the application's answer, Status, is the outcome
	EventInterrupted EventKind = "interrupted" // the upload ended as interrupted
	EventDeleted     EventKind = "deleted"     // the client removed the upload
	EventExpired     EventKind = "expired"     // clean-up removed the upload
)

// Event is one thing that happened. With an owner the id is no secret; without
// one it is all that it takes to use the upload, so it must not be logged whole.
type Event struct {
	Kind     EventKind
	ID       string
	Site     string
	Owner    string
	Protocol string
	Bytes    int64
	Status   int
	Duration time.Duration // of a delivery that ended
}

// Observer is told what happens. It is called from many goroutines and must
// not block. The context may be done.
type Observer interface {
	ObserveUpload(ctx context.Context, e Event)
}

type noObserver struct{}

func (noObserver) ObserveUpload(context.Context, Event) {}
