// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"bytes"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// TestFramesThatTheDeviceDidNotTakeLeaveWithoutMoreToSend leaves a frame where Send leaves those that the device would not take in
// time. The answer to it may be all that there is to wait for.
func TestFramesThatTheDeviceDidNotTakeLeaveWithoutMoreToSend(t *testing.T) {
	s := newScene(t)
	l := s.port.lanes[0]
	c := l.laneSocket.Load()
	sent := message(4, 500)
	run := underlay.Run{To: &s.to, Parts: [][]byte{sent}, SegSize: len(sent), Segments: 1}
	headers, from := l.tx.choose(&run)
	l.tx.header.begin(headers, from, s.to.Dst.Port(), packet.ECN(0))
	must(t, l.tx.sendFrames(c, &run))
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
	await(t, "the frame to leave", func() bool { return !c.hasHeldFrames() })
	got := make([]byte, 1500)
	if n, _, err := s.peer.ReadFromUDPAddrPort(got); err != nil || !bytes.Equal(got[:n], sent) {
		t.Errorf("%d bytes arrived, %v, want %d", n, err, len(sent))
	}
	checkLedger(t, s.port)
	must(t, s.port.Close())
	<-received
}
