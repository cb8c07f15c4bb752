// SPDX-License-Identifier: Apache-2.0

package lanetest

import (
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// SealAs returns a message from the peer with a counter.
func (r *Rig) SealAs(counter uint64, plain []byte) []byte {
	l := session.NewLayout(1, len(plain), len(plain), lane.DefaultMTU)
	msg := make([]byte, l.Size())
	copy(msg[wire.DataHeaderLen:], plain)
	if r.Remote.SealTrain(&r.Scratch, msg, l, counter) != len(msg) {
		r.TB.Fatal("the peer cannot seal")
	}
	return msg
}

// Stream is a flow that the rig's peer sprays. Each has another flow.
type Stream struct {
	R     *Rig
	First uint64
	Plain [][]byte
}

// Stream opens a stream of a flow, which has n packets.
func (r *Rig) Stream(n int) *Stream {
	s, ok := r.Remote.OpenStream()
	if !ok {
		r.TB.Fatal("no stream")
	}
	defer s.Close()
	first, _ := s.Reserve(1 << 30)
	st := &Stream{R: r, First: first}
	number, _ := session.SplitStream(first)
	f := flow.Flow{Ends: flow.Ends{Src: netip.AddrPortFrom(In4.Src.Addr(), uint16(number)), Dst: In4.Dst}, ID: 1}
	for range n {
		st.Plain = append(st.Plain, f.Next(100)[offload.VnetHdrLen:])
	}
	return st
}

// Arrive receives messages of the stream, each from its own port.
func (s *Stream) Arrive(numbers ...int) {
	for _, n := range numbers {
		msg := s.R.SealAs(s.First+uint64(n), s.Plain[n%len(s.Plain)])
		s.R.Receive(msg, len(msg))
	}
}

// Got returns the numbers of the packets that were delivered since the last call.
func (s *Stream) Got() (numbers []int) {
	for _, train := range s.R.Delivered() {
		packets, err := flow.Packets(train)
		if err != nil {
			s.R.TB.Fatal(err)
		}
		for _, p := range packets {
			numbers = append(numbers, slices.IndexFunc(s.Plain, func(q []byte) bool { return slices.Equal(p[40:], q[40:]) }))
		}
	}
	return numbers
}
