package directory

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// recalibrate is how long a comparison with the file server's clock is used.
const recalibrate = 10 * time.Minute

// serverClock tells the time of the file server: the time of a file that was
// just written there, and from then on what has passed here. All times in
// state files are its times, so that gateways whose own clocks differ agree
// about who lives.
type serverClock struct {
	now func() time.Time
	log *slog.Logger

	mu     sync.Mutex
	known  bool
	local  time.Time // when compared, by now
	server time.Time // the same moment, by the file server
}

// time returns the file server's time. Where nothing can be written (a
// read-only mount) the own clock has to do.
func (c *serverClock) time(root *folder) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if passed := now.Sub(c.local); c.known && passed >= 0 && passed < recalibrate {
		return c.server.Add(passed)
	}
	server, err := touch(root)
	now = c.now()
	if err != nil {
		if !errors.Is(err, ErrKilled) {
			c.log.Warn("file server's clock could not be read, using the own one", "error", err)
		}
		if !c.known {
			return now
		}
		return c.server.Add(now.Sub(c.local))
	}
	if skew := now.Round(0).Sub(server); skew.Abs() > 5*time.Second {
		c.log.Warn("clock differs from the file server's", "skew", skew)
	}
	c.known, c.local, c.server = true, now, server
	return server
}

// touch writes a file and returns the time that the server gave it.
func touch(root *folder) (time.Time, error) {
	name := tempFolder + "/clock." + rand.Text()
	f, err := root.create(name)
	if err != nil {
		return time.Time{}, err
	}
	err = f.writeAt([]byte("."), 0)
	err = errors.Join(err, f.close())
	// Opened again, since a client may guess the time while it holds the file.
	_, written, readErr := root.read(name)
	return written, errors.Join(err, readErr, root.remove(name))
}
