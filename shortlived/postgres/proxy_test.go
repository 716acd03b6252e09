package postgres

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy passes TCP connections on to a server and can spoil them.
type proxy struct {
	addr   string // where it listens
	target string

	listener net.Listener
	loseNext atomic.Bool // swallow what the server says next and cut
	hold     atomic.Bool // pass nothing the server says
	lost     atomic.Int32

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.down()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pass(server, client, nil) })
		p.wg.Go(func() { p.pass(client, server, p.spoil) })
	}
}

// pass copies until an end closes or spoil says stop, and closes both.
func (p *proxy) pass(to, from net.Conn, spoil func() (drop, cut bool)) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range []net.Conn{to, from} {
			delete(p.conns, c)
			c.Close()
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if spoil != nil {
			if drop, cut := spoil(); cut {
				return
			} else if drop {
				continue
			}
		}
		if _, err := to.Write(buf[:n]); err != nil && err != io.EOF {
			return
		}
	}
}

// spoil is asked when the server has spoken, so the command has run by then.
func (p *proxy) spoil() (drop, cut bool) {
	if p.loseNext.CompareAndSwap(true, false) {
		p.lost.Add(1)
		return true, true
	}
	return p.hold.Load(), false
}

// down refuses and cuts everything from now on.
func (p *proxy) down() {
	p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}
