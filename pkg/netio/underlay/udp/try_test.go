// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// TestRecvReturnsPendingTryRecvError makes the kernel refuse a datagram from a connected socket. The kernel reports
// this to the next system call only.
func TestRecvReturnsPendingTryRecvError(t *testing.T) {
	enterNamespace(t)
	p := open(t, Config{NoIPv6: true})
	l := p.lanes[0]
	if err := unix.Connect(l.fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(l.fd, []byte{1}); err != nil {
		t.Fatal(err)
	}
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	if n := l.TryRecv(rx); n != 0 {
		t.Fatalf("%d elements are there", n)
	}
	defer time.AfterFunc(10*time.Second, func() { _ = p.Close() }).Stop()
	if n, err := l.Recv(rx); n != 0 || !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("Recv = %d, %v", n, err)
	}
}

// TestDatagramsReadDuringCloseAreReturned: the datagrams have left the socket, so its next owner (Keep) cannot receive
// them.
func TestDatagramsReadDuringCloseAreReturned(t *testing.T) {
	enterNamespace(t)
	for name, receive := range map[string]func(*lane, []underlay.Datagrams) int{
		"TryRecv": (*lane).TryRecv,
		"Recv": func(l *lane, rx []underlay.Datagrams) int {
			n, _ := l.Recv(rx)
			return n
		},
	} {
		p := open(t, Config{})
		c := dial(t, "udp4", 0, p.LocalPort())
		defer c.Close()
		if _, err := c.Write([]byte("last")); err != nil {
			t.Fatal(err)
		}
		l := p.lanes[0]
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}}, 10_000); n != 1 {
			t.Fatal(n, err)
		}
		p.closed.Store(true) // Close begins with this
		rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
		if n := receive(l, rx); n != 1 || string(rx[0].Buf[:rx[0].N]) != "last" {
			t.Errorf("%s: got %d elements, want 1", name, n)
		}
		if n := l.TryRecv(rx); n != 0 {
			t.Errorf("%s: second call: got %d elements, want 0", name, n)
		}
		if n, err := l.Recv(rx); n != 0 || !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: second call: got %d, error %v, want 0, %v", name, n, err, net.ErrClosed)
		}
	}
}
