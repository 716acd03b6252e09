package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gatehouse-gateway/gatehouse/internal/pgconn"
)

const (
	// createTimeout bounds the creation of the table, which may wait for
	// another gateway that is at it.
	createTimeout = 5 * time.Second
	// createPause is how long a refused creation is not tried again. A table
	// that an administrator creates meanwhile is found at once all the same.
	createPause = 5 * time.Second
)

// creation is the state of creating the table.
type creation struct {
	mu      sync.Mutex
	made    time.Time // last success
	refused error
	until   time.Time // of refused
}

// create creates the table unless it is there. Of several callers at once, in
// this gateway and in others, one does.
func (s *Store) create(ctx context.Context) error {
	asked := time.Now()
	c := &s.table
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made.After(asked) {
		return nil // while this caller waited
	}
	if c.refused != nil && time.Now().Before(c.until) {
		return c.refused
	}
	ctx, cancel := context.WithTimeout(ctx, max(createTimeout, s.conn.Timeout()))
	defer cancel()
	err := s.conn.Script(ctx, s.sql.create)
	if err == nil {
		c.made, c.refused = time.Now(), nil
		return nil
	}
	err = fmt.Errorf("the table does not exist and cannot be created: %w; let an administrator run: %s", err, s.sql.schema)
	if !pgconn.Unavailable(err) {
		c.refused, c.until = err, time.Now().Add(createPause)
	}
	return err
}
