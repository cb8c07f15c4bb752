// SPDX-License-Identifier: Apache-2.0

package connlimit

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/ropewalk/ropewalk/test/expect"
)

// pair returns a connection in the limit, and its client.
func pair(t *testing.T, l *Limit) (*Slot, net.Conn) {
	t.Helper()
	client, server := net.Pipe()
	t.Cleanup(func() { _, _ = client.Close(), server.Close() })
	slot, err := l.Add(t.Context(), server)
	expect.NoError(t, err)
	return slot, client
}

// isClosed reports whether the server has closed a connection on which it sends nothing.
func isClosed(client net.Conn) bool {
	closed := make(chan bool, 1)
	go func() {
		_, err := client.Read(make([]byte, 1))
		closed <- errors.Is(err, io.EOF)
	}()
	synctest.Wait()
	select {
	case c := <-closed:
		return c
	default:
		return false
	}
}

func TestNewConnectionReplacesTheLongestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(3)
		a, clientA := pair(t, l)
		b, clientB := pair(t, l)
		_, clientC := pair(t, l)
		a.Serve()
		b.Wait() // again, after c
		_, clientD := pair(t, l)
		for name, c := range map[string]struct {
			client net.Conn
			want   bool
		}{"served": {clientA, false}, "waited for again": {clientB, false}, "waited for longest": {clientC, true}, "new": {clientD, false}} {
			if got := isClosed(c.client); got != c.want {
				t.Errorf("the connection that is %s: got closed %v, want %v", name, got, c.want)
			}
		}
	})
}

func TestAddBlocksWhileAllAreServed(t *testing.T) {
	for name, end := range map[string]func(*Slot, context.CancelFunc){
		"one ends":         func(s *Slot, _ context.CancelFunc) { s.Release() },
		"one waits again":  func(s *Slot, _ context.CancelFunc) { s.Wait() },
		"the context ends": func(_ *Slot, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := New(2)
				a, _ := pair(t, l)
				b, _ := pair(t, l)
				a.Serve()
				b.Serve()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				_, server := net.Pipe()
				added := make(chan error, 1)
				go func() {
					_, err := l.Add(ctx, server)
					added <- err
				}()
				synctest.Wait()
				if len(added) != 0 {
					t.Fatal("Add did not block")
				}
				end(a, cancel)
				if err := <-added; !errors.Is(err, ctx.Err()) {
					t.Errorf("got error %v, want %v", err, ctx.Err())
				}
			})
		})
	}
}

func TestReleasedSlotsAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(2)
		a, _ := pair(t, l)
		_, clientB := pair(t, l)
		a.Release()
		a.Release()
		pair(t, l)
		if isClosed(clientB) {
			t.Error("a connection was closed although one had ended")
		}
	})
}

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) { return <-p, nil }
func (pipes) Close() error                { return nil }
func (pipes) Addr() net.Addr              { return nil }

// overTLS is a connection over another one.
type overTLS struct{ net.Conn }

func (o overTLS) NetConn() net.Conn { return o.Conn }

// TestListenerClosesIdleBeforeServedConnections has more and more clients: those without a request go first, then the oldest.
func TestListenerClosesIdleBeforeServedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := make(pipes, 1)
		l := Listen(p, 3)
		connect := func(serve bool) (client net.Conn) {
			client, server := net.Pipe()
			t.Cleanup(func() { _, _ = client.Close(), server.Close() })
			p <- server
			conn, err := l.Accept()
			expect.NoError(t, err)
			if serve {
				Serve(overTLS{conn})
			}
			return client
		}
		idle := func() net.Conn { return connect(false) }
		scrape := connect(true)
		first := idle()
		for range 5 {
			idle()
		}
		if isClosed(scrape) || !isClosed(first) {
			t.Error("idle clients have ended the request that is being answered")
		}
		connect(true)
		connect(true)
		if isClosed(scrape) {
			t.Error("a request was ended while an idle client was connected")
		}
		if connect(true); !isClosed(scrape) {
			t.Error("the oldest of too many requests goes on")
		}
	})
}

// TestStalledAnswersLeaveRoomForRequests has as many clients as there may be, which read no answer, and idle ones while another client sends its
// request.
func TestStalledAnswersLeaveRoomForRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxConns = 8
		p := make(pipes, 1)
		l := Listen(p, maxConns)
		connect := func() (conn, client net.Conn) {
			client, server := net.Pipe()
			t.Cleanup(func() { _, _ = client.Close(), server.Close() })
			p <- server
			conn, err := l.Accept()
			expect.NoError(t, err)
			return conn, client
		}
		for range maxConns {
			stalled, _ := connect()
			Serve(stalled)
		}
		_, client := connect()
		for range maxConns/4 - 1 {
			connect()
		}
		if isClosed(client) {
			t.Error("the next idle client has ended a connection before its request")
		}
	})
}
