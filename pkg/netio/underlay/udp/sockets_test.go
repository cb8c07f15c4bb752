// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// TestNewPortReceivesDatagramsOfKeptSockets keeps the sockets of a port, and sends to them while no port uses them.
func TestNewPortReceivesDatagramsOfKeptSockets(t *testing.T) {
	enterNamespace(t)
	first, err := Open(Config{Lanes: 2})
	if err != nil {
		t.Fatal(err)
	}
	source, err := first.OpenSource(61000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.SetSelection(&underlay.Selection{First: 61000, Last: 61063}); err != nil {
		t.Fatal(err)
	}
	blocked := make(chan error, 3)
	for _, r := range []underlay.Receiver{first.Lane(0), first.Lane(1), first.SecondaryPorts()} {
		go func() {
			_, err := r.Recv([]underlay.Datagrams{{Buf: make([]byte, 65535)}})
			blocked <- err
		}()
	}
	kept, err := first.Keep()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Keep(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Keep: got error %v, want %v", err, net.ErrClosed)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for range cap(blocked) {
		if err := <-blocked; !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	}
	port := first.LocalPort()
	if _, err := Open(Config{Port: port}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("the port is free meanwhile: got error %v, want %v", err, syscall.EADDRINUSE)
	}
	c, err := net.DialUDP("udp", &net.UDPAddr{Port: 61001}, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("meanwhile")); err != nil {
		t.Fatal(err)
	}
	second, err := Open(Config{Port: port, Lanes: 2, Sockets: kept})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if p := second.Source(source); p != 61000 || second.LocalPort() != port || !second.Features().Select {
		t.Errorf("source %d, port %d, %+v", p, second.LocalPort(), second.Features())
	}
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	n, err := second.Lane(1).Recv(rx) // 61001 is the second port of the range
	if err != nil || n != 1 || string(rx[0].Buf[:rx[0].N]) != "meanwhile" {
		t.Errorf("got %d, error %v, want 1, no error", n, err)
	}
}

func TestOnlySocketsOfOnePortAreInherited(t *testing.T) {
	enterNamespace(t)
	p, err := Open(Config{Lanes: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	kept, err := p.Keep()
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	other, err := newSocket(unix.AF_INET)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	for name, c := range map[string]Config{
		"too few":        {Lanes: 3, Sockets: kept},
		"another port":   {Lanes: 2, Port: p.LocalPort() + 1, Sockets: kept},
		"an unbound one": {Lanes: 2, Sockets: &Sockets{Lanes: []int{kept.Lanes[0], other}}},
		"no socket":      {Lanes: 1, Sockets: &Sockets{Lanes: []int{event}}},
		"a bad source":   {Lanes: 2, Sockets: &Sockets{Lanes: kept.Lanes, Sources: []Source{{61000, other}}}},
	} {
		if _, err := Open(c); err == nil {
			t.Errorf("%s: Open succeeded", name)
		}
	}
}
