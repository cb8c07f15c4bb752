// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// TestAnErrorThatTryRecvMeetsIsTheNextRecvs has the kernel refuse what was sent from a connected socket: it tells the next
// system call, and no other.
func TestAnErrorThatTryRecvMeetsIsTheNextRecvs(t *testing.T) {
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
