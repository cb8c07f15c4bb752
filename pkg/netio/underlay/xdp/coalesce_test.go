// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

// notData reports whether a message is no data message.
func notData(datagram []byte) bool { return datagram[0] != 4 }

// read returns what a read of the UDP socket returns: one message of each kind.
func read(kinds ...byte) (rx []underlay.Datagrams) {
	for _, kind := range kinds {
		b := message(kind, 148)
		rx = append(rx, underlay.Datagrams{Buf: b, N: len(b), SegSize: len(b)})
	}
	return rx
}

func TestFloodIsReadAtIntervals(t *testing.T) {
	flood := read(bytes.Repeat([]byte{1}, coalesceAfter)...)
	for _, c := range []struct {
		name  string
		reads [][]underlay.Datagrams
		more  bool
		want  time.Duration
	}{
		{"a few initiations", [][]underlay.Datagrams{flood[1:]}, false, 0},
		{"a flood", [][]underlay.Datagrams{flood}, false, coalesceInterval},
		{"a flood in two reads", [][]underlay.Datagrams{flood[1:], flood[:1]}, false, coalesceInterval},
		{"a flood of responses, cookie replies and others", [][]underlay.Datagrams{flood[2:], read(2, 3, 5)}, false, coalesceInterval},
		{"a flood that leaves more in the socket", [][]underlay.Datagrams{flood}, true, 0},
		{"a flood before an empty read", [][]underlay.Datagrams{flood, nil}, false, 0},
		{"a flood after an empty read", [][]underlay.Datagrams{flood, nil, flood[:1]}, false, coalesceInterval},
		{"data", [][]underlay.Datagrams{read(bytes.Repeat([]byte{4}, coalesceAfter)...)}, false, 0},
		{"data in a flood", [][]underlay.Datagrams{flood, read(1, 4, 1)}, false, 0},
		{"initiations after data", [][]underlay.Datagrams{flood, read(4), flood[1:]}, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := coalescer{mayWait: notData}
				for _, rx := range c.reads {
					got.note(rx, c.more)
				}
				if got.wait() != c.want {
					t.Errorf("the next read is due in %v, want %v", got.wait(), c.want)
				}
				if time.Sleep(coalesceInterval); got.wait() != 0 {
					t.Errorf("the next read is due in %v after the interval, want 0", got.wait())
				}
			})
		})
	}
}

// TestDataPassesFloodThatWaits sends a flood one by one, and then a handshake message and data while the lane coalesces.
func TestDataPassesFloodThatWaits(t *testing.T) {
	p := newPair(t, 1)
	a, b := p.classify(0, Config{Binding: Binding{Mode: xsk.Copy}, MayWait: notData}, udp.Config{}), p.openKernelSocket(1)
	to := p.endpoint(0, a, false)
	send := func(kind byte) {
		_, err := b.WriteToUDPAddrPort(message(kind, 148), to.Dst)
		expect.NoError(t, err)
	}
	receive := func(want byte) {
		t.Helper()
		if got, _ := recvOne(t, a.Lane(0)); !bytes.Equal(got, message(want, 148)) {
			t.Fatalf("got a message of type %d, want %d", got[0], want)
		}
	}
	expect.Eventually(t, "data arrives through AF_XDP", func() bool {
		send(4)
		receive(4)
		return a.Status().Lanes[0].Received > 0
	})
	for range 2 * coalesceAfter {
		send(2)
		receive(2)
	}
	c := &a.lanes[0].rx.coalescer
	if c.waiting != coalesceAfter {
		t.Errorf("%d datagrams counted, want %d", c.waiting, coalesceAfter)
	}
	c.next = time.Now().Add(time.Hour)
	send(2)
	for range 2 * maxXDPTurns {
		send(4)
		receive(4)
	}
	c.next = time.Time{}
	receive(2)
}
