// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// load is traffic between two pods: a TCP connection that echoes the secret, and pings.
type load struct {
	l    *lab
	what string
	stop chan struct{}
	done sync.WaitGroup
	open []io.Closer

	mu       sync.Mutex
	broken   error // of the connection
	rounds   int
	longest  time.Duration // duration of a round
	sent     int
	answered map[int]bool // by number
	began    time.Time
}

const (
	loadPort  = 8081
	pingEvery = 5 * time.Millisecond
	pingID    = 0x4321
)

// burden starts the load.
func (l *lab) burden(what string, from, to *pod) *load {
	l.Helper()
	b := &load{l: l, what: what, stop: make(chan struct{}), answered: map[int]bool{}, began: time.Now()}
	server := to.listen(loadPort)
	client := from.dial(netip.AddrPortFrom(to.addr, loadPort))
	var pings net.PacketConn
	expect.NoError(l, from.host.Do(func() (err error) {
		pings, err = new(net.ListenConfig).ListenPacket(l.Context(), "ip4:icmp", from.addr.String())
		return err
	}))
	b.done.Go(func() { b.echo(client) })
	b.done.Go(func() { b.ask(pings, to.addr) })
	b.done.Go(func() { b.hear(pings) })
	b.open = []io.Closer{client, server, pings}
	l.Cleanup(b.end)
	return b
}

// listen echoes what any connection sends.
func (p *pod) listen(port uint16) net.Listener {
	var s net.Listener
	expect.NoError(p.n.l, p.host.Do(func() (err error) {
		s, err = new(net.ListenConfig).Listen(context.Background(), "tcp", netip.AddrPortFrom(p.addr, port).String())
		return err
	}))
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	return s
}

func (p *pod) dial(to netip.AddrPort) net.Conn {
	var c net.Conn
	expect.NoError(p.n.l, p.host.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: patience}).DialContext(context.Background(), "tcp", to.String())
		return err
	}))
	return c
}

func (l *load) ended() bool {
	select {
	case <-l.stop:
		return true
	default:
		return false
	}
}

// echo sends in a loop and compares the echo.
func (l *load) echo(c net.Conn) {
	out, back := secret[:22*700], make([]byte, 22*700)
	for !l.ended() {
		at := time.Now()
		err := c.SetDeadline(at.Add(patience))
		if err == nil {
			_, err = c.Write(out)
		}
		if err == nil {
			_, err = io.ReadFull(c, back)
		}
		if err == nil && !bytes.Equal(out, back) {
			err = errors.New("something else came back")
		}
		l.mu.Lock()
		l.broken = err
		l.rounds++
		l.longest = max(l.longest, time.Since(at))
		l.mu.Unlock()
		if err != nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (l *load) ask(c net.PacketConn, to netip.Addr) {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for !l.ended() {
		<-t.C
		l.mu.Lock()
		seq := l.sent
		l.sent++
		l.mu.Unlock()
		request := make([]byte, 8)
		request[0] = 8
		binary.BigEndian.PutUint16(request[4:], pingID)
		binary.BigEndian.PutUint16(request[6:], uint16(seq))
		sum := uint32(0x0800) + pingID + uint32(uint16(seq))
		binary.BigEndian.PutUint16(request[2:], ^uint16(sum+sum>>16))
		_, _ = c.WriteTo(request, &net.IPAddr{IP: to.AsSlice()}) // a send error is a lost ping
	}
}

func (l *load) hear(c net.PacketConn) {
	buf := make([]byte, 256)
	for !l.ended() {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		n, _, err := c.ReadFrom(buf)
		if err != nil || n < 8 || buf[0] != 0 || binary.BigEndian.Uint16(buf[4:]) != pingID {
			continue
		}
		l.mu.Lock()
		l.answered[ping(l.sent, binary.BigEndian.Uint16(buf[6:]))] = true
		l.mu.Unlock()
	}
}

// ping returns the number of the last of that many pings with the sequence number seq: it has 16 bits, which repeat after
// minutes.
func ping(sent int, seq uint16) int { return sent - 1 - int(uint16(sent-1)-seq) }

func TestPingNumberExtendsSequence(t *testing.T) {
	const again = 1 << 16
	for _, c := range []struct{ sent, number int }{
		{1, 0}, {3, 1}, {again, 0}, {again + 1, again}, {again + 1, again - 1}, {3*again + 7, 3*again - 9},
	} {
		if got := ping(c.sent, uint16(c.number)); got != c.number {
			t.Errorf("of %d pings it is %d, want %d", c.sent, got, c.number)
		}
	}
}

func (l *load) end() {
	if !l.ended() {
		close(l.stop)
	}
	l.done.Wait()
	for _, c := range l.open {
		c.Close()
	}
}

// carries waits until the connection has made progress.
func (l *load) carries() {
	l.l.Helper()
	l.mu.Lock()
	at := l.rounds
	l.mu.Unlock()
	expect.EventuallyNoError(l.l, l.what+": the connection goes on", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.broken != nil {
			l.l.Fatalf("%s: a TCP connection is lost: got %v, want nil", l.what, l.broken)
		}
		if l.rounds < at+3 {
			return errors.New("nothing comes back")
		}
		return nil
	})
}

// finish waits for progress, ends the load, and reports. It fails if the connection was lost.
func (l *load) finish() {
	l.l.Helper()
	l.carries()
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	lost, run, gap := 0, 0, 0
	for i := range l.sent - int(200*time.Millisecond/pingEvery) { // the last ones may be in flight
		run++
		if l.answered[i] {
			run = 0
		} else {
			lost++
		}
		gap = max(gap, run)
	}
	l.l.Logf("%s: in %s %d echoes over one TCP connection, the longest took %d ms; of %d pings %d were lost, at most %d ms in a row",
		l.what, time.Since(l.began).Round(time.Second), l.rounds, l.longest.Milliseconds(), l.sent, lost, gap*int(pingEvery.Milliseconds()))
}
