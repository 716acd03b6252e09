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
	mu    sync.Mutex
	tried time.Time // end of the last attempt
	err   error     // its outcome
}

// create creates the table unless it is there. Of several callers at once, in
// this gateway and in others, one does; those who waited for it share its
// outcome, so it does not depend on any one caller's patience.
func (s *Store) create(ctx context.Context) error {
	asked := time.Now()
	c := &s.table
	c.mu.Lock()
	defer c.mu.Unlock()
	refused := c.err != nil && !pgconn.Unavailable(c.err)
	if c.tried.After(asked) || (refused && time.Since(c.tried) < createPause) {
		return c.err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(createTimeout, s.conn.Timeout()))
	defer cancel()
	c.err = s.conn.Script(ctx, s.sql.create)
	if c.err != nil {
		c.err = fmt.Errorf("the table does not exist and cannot be created: %w; let an administrator run: %s", c.err, s.sql.schema)
	}
	c.tried = time.Now()
	return c.err
}
