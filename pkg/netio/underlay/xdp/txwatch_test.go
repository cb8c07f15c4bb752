// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestTxWatchFindsFramesThatStay(t *testing.T) {
	type review struct {
		done          uint32
		outstanding   int
		wake, stalled bool
	}
	for name, reviews := range map[string][]review{
		"idle":           {{0, 0, false, false}, {0, 0, false, false}, {0, 0, false, false}},
		"busy":           {{1, 9, false, false}, {5, 9, false, false}, {9, 9, false, false}},
		"stalled":        {{5, 1, false, false}, {5, 2, true, false}, {5, 2, false, true}},
		"stalled anew":   {{5, 1, false, false}, {5, 1, true, false}, {6, 1, false, false}, {6, 1, true, false}, {6, 1, false, true}},
		"sent meanwhile": {{5, 1, false, false}, {5, 1, true, false}, {5, 0, false, false}, {5, 1, true, false}},
		"wraps":          {{1<<32 - 1, 1, false, false}, {0, 1, false, false}, {0, 1, true, false}},
	} {
		var w txWatch
		for i, r := range reviews {
			if wake, stalled := w.check(r.done, r.outstanding); wake != r.wake || stalled != r.stalled {
				t.Errorf("%s, review %d: got wake %v, stalled %v, want %v, %v", name, i, wake, stalled, r.wake, r.stalled)
			}
		}
	}
}

// TestStalledSocketsAreReplacedAndThenRefused has a device that seems to send nothing.
func TestStalledSocketsAreReplacedAndThenRefused(t *testing.T) {
	p := newPair(t, 1)
	config := Config{
		Binding: Binding{Mode: xsk.Copy}, reviewInterval: 5 * time.Millisecond,
		progress: func() (done uint32, outstanding int) { return 7, 1 },
	}
	s := &testNet{pair: p, port: p.classify(0, config, udp.Config{}), peer: p.openKernelSocket(1)}
	s.to = p.kernelEndpoint(1, s.peer, false)
	expect.Eventually(t, "three sockets have been replaced", func() bool {
		runs := []underlay.Run{{To: &s.to, Parts: [][]byte{message(4, 100)}, Segments: 1}}
		s.port.Lane(0).Send(runs)
		l := s.port.Status().Lanes[0]
		return l.Stalls == maxStalls && l.Fallbacks == maxStalls && errors.Is(l.Err, errRefusing)
	})
	s.drain()
	sent, got := message(4, 300), make([]byte, 1500)
	sendOne(t, s.port.Lane(0), &s.to, sent)
	if n, _, err := s.peer.ReadFromUDPAddrPort(got); err != nil || !bytes.Equal(got[:n], sent) {
		t.Errorf("%d bytes arrived through the UDP socket, %v, want %d", n, err, len(sent))
	}
}
