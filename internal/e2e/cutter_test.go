package e2e

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// cutter is a TCP proxy that stands before several gateways, leads each new
// connection to the next of them, and cuts the first connections that carry
// much, as bad networks do.
type cutter struct {
	addr    string
	targets []string

	mu    sync.Mutex
	turn  int
	left  int // connections that are still to be cut
	cut   int // connections that were cut
	conns map[net.Conn]bool
}

// startCutter starts a proxy that cuts cuts connections, each after 1 to 24 MiB
// from the client, and then none.
func startCutter(t testing.TB, cuts int, targets ...string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{addr: l.Addr().String(), targets: targets, left: cuts, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		c.mu.Lock()
		for conn := range c.conns {
			conn.Close()
		}
		c.mu.Unlock()
		wg.Wait()
	})
	return c
}

func (c *cutter) serve(client net.Conn) {
	c.mu.Lock()
	c.turn++
	target := c.targets[c.turn%len(c.targets)]
	c.mu.Unlock()
	server, err := net.Dial("tcp", target)
	if err != nil {
		client.Close()
		return
	}
	c.mu.Lock()
	c.conns[client], c.conns[server] = true, true
	c.mu.Unlock()
	defer func() {
		client.Close()
		server.Close()
		c.mu.Lock()
		delete(c.conns, client)
		delete(c.conns, server)
		c.mu.Unlock()
	}()

	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(client, server)
		client.Close()
	})
	limit := int64(1<<20) + rand.Int64N(23<<20)
	n, _ := io.CopyN(server, client, limit)
	if n == limit && !c.takeCut() {
		_, _ = io.Copy(server, client)
	}
	if tcp, ok := client.(*net.TCPConn); ok && n == limit {
		_ = tcp.SetLinger(0) // a reset, not an orderly end
	}
	client.Close()
	server.Close()
	wg.Wait()
}

// takeCut reports whether this connection is to be cut.
func (c *cutter) takeCut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left == 0 {
		return false
	}
	c.left--
	c.cut++
	return true
}

func (c *cutter) cuts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cut
}
