// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// newPair returns the two ends of one session.
func newPair(tb testing.TB, created int64) (a, b *Keypair) {
	tb.Helper()
	keys := noise.Keys{Local: 0x11111111, Remote: 0x22222222, Initiator: true}
	for i := range keys.Send {
		keys.Send[i], keys.Recv[i] = byte(i), byte(0x80+i)
	}
	a, err := NewKeypair(&keys, created)
	if err != nil {
		tb.Fatal(err)
	}
	keys.Send, keys.Recv = keys.Recv, keys.Send
	keys.Local, keys.Remote, keys.Initiator = keys.Remote, keys.Local, false
	b, err = NewKeypair(&keys, created)
	if err != nil {
		tb.Fatal(err)
	}
	for _, k := range []*Keypair{a, b} {
		k.AnnounceStreams(NewStreamBudget(sessionStreamBytes))
		k.AgreeStreams(true)
	}
	return a, b
}

func TestKeypairReportsInitiator(t *testing.T) {
	a, b := newPair(t, 77)
	if !a.Initiator() || b.Initiator() || a.Local() != b.Remote() || a.Remote() != b.Local() || a.Created() != 77 {
		t.Errorf("got %v and %v, want mirrored roles and indices, created at 77", a, b)
	}
}

func TestKeypairExpiresAfterRejectAfterTime(t *testing.T) {
	a, _ := newPair(t, 1000)
	if a.Expired(1000 + RejectAfterTime - 1) {
		t.Error("Expired before Reject-After-Time = true, want false")
	}
	if !a.Expired(1000 + RejectAfterTime) {
		t.Error("Expired at Reject-After-Time = false, want true")
	}
}

func TestReserveReturnsConsecutiveBlocks(t *testing.T) {
	a, _ := newPair(t, 0)
	want := uint64(0)
	for _, n := range []int{1, 45, 64, MaxReserve, 2} {
		first, ok := a.Reserve(n)
		if !ok || first != want {
			t.Fatalf("Reserve(%d) = %d, %v, want %d", n, first, ok, want)
		}
		want += uint64(n)
	}
	if a.Sent() != want {
		t.Errorf("Sent() = %d, want %d", a.Sent(), want)
	}
}

func TestReserveRejectsInvalidSizes(t *testing.T) {
	a, _ := newPair(t, 0)
	for _, n := range []int{0, -1, MaxReserve + 1} {
		if _, ok := a.Reserve(n); ok {
			t.Errorf("Reserve(%d): got counters, want none", n)
		}
	}
	if a.Sent() != 0 {
		t.Errorf("got %d counters used by rejected calls, want 0", a.Sent())
	}
}

func TestReserveStopsAtRejectAfterMessagesForGood(t *testing.T) {
	if RejectAfterMessages != ^uint64(0)-(1<<13) {
		t.Fatalf("got Reject-After-Messages %d, want 2^64-2^13-1", RejectAfterMessages)
	}
	a, _ := newPair(t, 0)
	a.next.Store(RejectAfterMessages - 10)
	if _, ok := a.Reserve(11); ok {
		t.Error("Reserve across the limit: got counters, want none")
	}
	if first, ok := a.Reserve(10); !ok || first != RejectAfterMessages-10 {
		t.Errorf("Reserve of the last 10 counters = %d, %v, want %d, true", first, ok, RejectAfterMessages-10)
	}
	for range 100_000 {
		if _, ok := a.Reserve(MaxReserve); ok {
			t.Fatal("Reserve after the limit: got counters, want none")
		}
	}
	if a.Sent() != RejectAfterMessages {
		t.Errorf("got counter %d after rejected calls, want %d", a.Sent(), RejectAfterMessages)
	}
}

// TestReserveNeverRepeatsCounter has two lanes that reserve until each has often been interrupted by the other, so that they run at the same time
// on a busy machine, too.
func TestReserveNeverRepeatsCounter(t *testing.T) {
	for _, start := range []uint64{0, casFrom - 1000, RejectAfterMessages - 1000} {
		a, _ := newPair(t, 0)
		a.next.Store(start)
		var lanes [2]reserver
		var wg sync.WaitGroup
		for i := range lanes {
			wg.Go(func() { lanes[i].run(t, a, start) })
		}
		wg.Wait()
		for block := range min(len(lanes[0].blocks), len(lanes[1].blocks)) {
			if lanes[0].blocks[block] && lanes[1].blocks[block] {
				t.Fatalf("counter %d was reserved twice", start+uint64(block)*reservedBlock)
			}
		}
	}
}

// reservedBlock is the size of the blocks that a reserver reserves.
const reservedBlock = 3

// reserver is a lane that notes the blocks that it has reserved, by their order.
type reserver struct{ blocks []bool }

func (r *reserver) run(t *testing.T, k *Keypair, start uint64) {
	const wantInterrupted = 20_000
	maxBlocks := 5_000_000
	if testing.Short() { // the race detector needs some 20 times as long
		maxBlocks /= 20
	}
	next := start
	for interrupted := 0; len(r.blocks) < maxBlocks && interrupted < wantInterrupted; {
		first, ok := k.Reserve(reservedBlock)
		if !ok {
			return // failed calls do not advance the counter
		}
		block := int((first - start) / reservedBlock)
		if first < next || first+reservedBlock > RejectAfterMessages {
			t.Errorf("counter %d was reserved twice or is beyond the limit", first)
			return
		}
		if first > next {
			interrupted++
		}
		next = first + reservedBlock
		r.blocks = append(r.blocks, make([]bool, block-len(r.blocks))...)
		r.blocks = append(r.blocks, true)
	}
}

func TestKeypairNeverPrintsItsKeys(t *testing.T) {
	a, _ := newPair(t, 0)
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("a session", "session", a)
	text, err := json.Marshal(struct{ Session any }{a})
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(text)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		all += fmt.Sprintf(verb, a) + fmt.Sprintf(verb, struct{ K *Keypair }{a})
	}
	for _, secret := range []string{"000102030405", "0 1 2 3 4", "0x0, 0x1, 0x2", "808182838485", "128 129 130"} {
		if strings.Contains(all, secret) {
			t.Errorf("got %s, want no secret %q in it", all, secret)
		}
	}
	if !strings.Contains(all, "11111111/22222222") {
		t.Errorf("got %s, want the indices 11111111/22222222 in it", all)
	}
	if none := (*Keypair)(nil); none.String() == "" {
		t.Error("String of a nil session is empty")
	}
}
