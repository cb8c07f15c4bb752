// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// singlesRig is a rig with n received elements of one message of size bytes each, and their packets.
func singlesRig(t *testing.T, n, size int) (r *rig, packets [][]byte) {
	t.Helper()
	r = newRig(t)
	r.rx.setSlots(Slots)
	for i := range n {
		p := lanetest.In4.UDP(slices.Repeat([]byte{byte(i)}, size-28-i%2)) // of two sizes: nothing merges them
		msg := r.Message(r.Remote, p)
		r.arriveFrom(i, lanetest.There, msg, len(msg))
		packets = append(packets, p)
	}
	return r, packets
}

func (r *rig) element(i int) *element {
	e := &element{}
	e.Datagrams = r.rx.in[i]
	return e
}

func TestSingleMessagesAreOpenedTogether(t *testing.T) {
	r, _ := singlesRig(t, Slots-1, 64)
	for i := range Slots - 1 {
		r.rx.handleElement(r.element(i))
	}
	if got := r.rx.singles.n; got != Slots-1 || r.rx.packets != 0 {
		t.Errorf("got %d messages waiting and %d opened, want all %d waiting", got, r.rx.packets, Slots-1)
	}
	if r.rx.flush(); r.rx.singles.n != 0 || r.rx.packets != Slots-1 {
		t.Errorf("after a write: %d messages waiting and %d opened, want none and %d", r.rx.singles.n, r.rx.packets, Slots-1)
	}
}

func TestLargeSingleMessagesStayInCache(t *testing.T) {
	r, packets := singlesRig(t, Slots, 1340)
	for i := range Slots {
		r.rx.handleElement(r.element(i))
		if r.rx.singles.bytes >= maxSingleBytes && r.rx.singles.n > 0 {
			t.Fatalf("%d bytes wait", r.rx.singles.bytes)
		}
	}
	r.rx.flush()
	samePayloads(t, lanetest.PacketsOf(t, r.Delivered()...), packets)
}

func TestBadSingleMessageDropsNoOther(t *testing.T) {
	for _, size := range []int{64, 1340} { // in place, and through the queue
		r, packets := singlesRig(t, Slots, size)
		r.rx.in[3].Buf[20] ^= 1
		copy(r.rx.in[9].Buf, r.rx.in[8].Buf[:r.rx.in[8].N]) // a copy of the one before
		r.rx.in[9].N, r.rx.in[9].SegSize = r.rx.in[8].N, r.rx.in[8].N
		r.rx.in[20].Buf[4] ^= 1 // of no session
		r.rx.in[30].Truncated = true
		r.rx.batch(Slots)
		want := slices.DeleteFunc(slices.Clone(packets), func(p []byte) bool { return slices.Contains([]byte{3, 9, 20, 30}, p[28]) })
		samePayloads(t, lanetest.PacketsOf(t, r.Delivered()...), want)
		for reason, n := range map[drop.Reason]uint64{drop.RXAuth: 1, drop.RXReplay: 1, drop.RXUnknownIndex: 1, drop.RXTruncated: 1} {
			if got := r.Drops(reason); got != n {
				t.Errorf("%d B: got %d drops for %v, want %d", size, got, reason, n)
			}
		}
	}
}

func TestSingleMessagesKeepOrderWithTrains(t *testing.T) {
	r, packets := singlesRig(t, 4, 64)
	train := lanetest.In4.UDP(make([]byte, 500))
	run, size := r.Seal(train, train)
	r.arriveFrom(4, lanetest.There, run, size)
	last := lanetest.In4.UDP(make([]byte, 7))
	msg := r.Message(r.Remote, last)
	r.arriveFrom(5, lanetest.There, msg, len(msg))
	r.rx.batch(6)
	samePayloads(t, lanetest.PacketsOf(t, r.Delivered()...), append(packets, train, train, last))
	if r.rx.singles.elements[0].From != (underlay.Endpoint{}) {
		t.Error("an element is kept after it was handled")
	}
}
