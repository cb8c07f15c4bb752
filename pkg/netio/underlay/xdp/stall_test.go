// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestHeldFramesLeaveWithoutFurtherSend leaves a frame in the ring, as Send does if the device does not take it in
// time. The sender may wait for the answer to this frame before it sends again.
func TestHeldFramesLeaveWithoutFurtherSend(t *testing.T) {
	s := newTestNet(t)
	l := s.port.lanes[0]
	c := l.laneSocket.Load()
	sent := message(4, 500)
	run := underlay.Run{To: &s.to, Parts: [][]byte{sent}, SegSize: len(sent), Segments: 1}
	headers, from := l.tx.choose(&run)
	l.tx.header.begin(headers, from, s.to.Dst.Port(), packet.ECN(0), false)
	expect.NoError(t, l.tx.sendFrames(c, &run))
	if !c.hasHeldFrames() {
		t.Fatal("the frame has left already")
	}
	l.wakeForHeld(c)
	received := make(chan struct{})
	go func() {
		defer close(received)
		rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
		for {
			if _, err := l.Recv(rx); err != nil {
				return
			}
		}
	}()
	expect.Eventually(t, "the frame to leave", func() bool { return !c.hasHeldFrames() })
	got := make([]byte, 1500)
	if n, _, err := s.peer.ReadFromUDPAddrPort(got); err != nil || !bytes.Equal(got[:n], sent) {
		t.Errorf("%d bytes arrived, %v, want %d", n, err, len(sent))
	}
	checkFrameBalance(t, s.port)
	expect.NoError(t, s.port.Close())
	<-received
}
