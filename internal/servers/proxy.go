package servers

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy passes TCP connections on to a server and can spoil what the server
// says. By then it has done what it was asked.
type Proxy struct {
	Addr string // 127.0.0.1:port

	target   string
	listener net.Listener
	loseNext atomic.Bool
	loseIf   atomic.Pointer[func(said []byte) bool]
	hold     atomic.Bool

	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// StartProxy starts a proxy before target that ends with the test.
func StartProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, listener: l, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		p.Down()
		p.wg.Wait()
	})
	return p
}

// LoseNext loses what the server says next and cuts that connection.
func (p *Proxy) LoseNext() { p.loseNext.Store(true) }

// LoseIf asks lose about each piece that the server says: true loses it and
// cuts the connection.
func (p *Proxy) LoseIf(lose func(said []byte) bool) { p.loseIf.Store(&lose) }

// Hold loses all that the server says while it is on, and leaves connections
// open.
func (p *Proxy) Hold(on bool) { p.hold.Store(on) }

// Down refuses and cuts everything from now on.
func (p *Proxy) Down() {
	p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

func (p *Proxy) accept() {
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
func (p *Proxy) pass(to, from net.Conn, spoil func(said []byte) (drop, cut bool)) {
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
			if drop, cut := spoil(buf[:n]); cut {
				return
			} else if drop {
				continue
			}
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) spoil(said []byte) (drop, cut bool) {
	lose := p.loseIf.Load()
	if p.loseNext.CompareAndSwap(true, false) || lose != nil && (*lose)(said) {
		return true, true
	}
	return p.hold.Load(), false
}
