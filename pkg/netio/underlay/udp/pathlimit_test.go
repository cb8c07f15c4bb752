// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// refuseTrains returns a verdict that refuses trains whose payload begins with fill.
func refuseTrains(fill byte, errno unix.Errno) func([]byte, bool, bool) unix.Errno {
	return func(payload []byte, segmented, _ bool) unix.Errno {
		if segmented && payload[0] == fill {
			return errno
		}
		return 0
	}
}

// limitedLane is a faultyLane with a clock that the test moves.
func limitedLane(t *testing.T, k *faultyKernel) (p *Port, l *lane, now *time.Time) {
	t.Helper()
	p, l = faultyLane(t, k)
	now = new(time.Now())
	p.paths.now = func() time.Time { return *now }
	return p, l, now
}

// runTo is run for another destination, 127.0.0.n.
func runTo(n byte, segments int, fill byte) underlay.Run {
	r := run(segments, fill)
	r.To = &underlay.Endpoint{Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, n}), 9)}
	return r
}

// sendOnce sends the runs and returns the sizes of the messages, and the number of system calls.
func sendOnce(t *testing.T, l *lane, k *faultyKernel, runs ...underlay.Run) (sizes []int, calls int) {
	t.Helper()
	k.sent, k.calls = nil, 0
	if failed := l.Send(runs); failed != 0 {
		t.Errorf("%d runs failed, the first with %v", failed, runs[0].Err)
	}
	return lengths(k.sent), k.calls
}

func TestRefusedGSOAffectsOneDestination(t *testing.T) {
	k := &faultyKernel{verdict: refuseTrains('x', unix.EIO)}
	p, l, now := limitedLane(t, k)
	runs := []underlay.Run{runTo(1, 1, 'a'), runTo(2, 3, 'x'), runTo(1, 3, 'b')}
	sizes, _ := sendOnce(t, l, k, runs...)
	if want := []int{10, 10, 10, 10, 30}; !slices.Equal(sizes, want) {
		t.Errorf("sent messages of %v, want %v", sizes, want)
	}
	if got := string(bytes.Join(k.sent, nil)); got != "aaaaaaaaaaxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb" {
		t.Errorf("sent out of order: %s", got)
	}
	if sizes, calls := sendOnce(t, l, k, runs...); calls != 1 || !slices.Equal(sizes, []int{10, 10, 10, 10, 30}) {
		t.Errorf("afterwards messages of %v in %d calls, want one call", sizes, calls)
	}
	if f := p.Features(); !f.GSO || f.DestinationsWithoutGSO != 1 {
		t.Errorf("features %+v, want GSO, but for 1 destination", f)
	}
	k.verdict = refuseTrains('-', 0) // the route has changed
	*now = now.Add(pathLifetime)
	if sizes, _ := sendOnce(t, l, k, runs...); !slices.Equal(sizes, []int{10, 30, 30}) {
		t.Errorf("after the limit's end messages of %v, want trains", sizes)
	}
	if f := p.Features(); f.DestinationsWithoutGSO != 0 || p.paths.table.Load() != nil {
		t.Errorf("the limit is still there: %+v", f)
	}
}

func TestManyRefusalsRevokeGSOUntilTheyEnd(t *testing.T) {
	k := &faultyKernel{verdict: refuseTrains('x', unix.EIO)}
	p, l, now := limitedLane(t, k)
	for i := range maxPathsWithoutGSO {
		sendOnce(t, l, k, runTo(byte(i), 2, 'x'))
	}
	if sizes, calls := sendOnce(t, l, k, runTo(255, 2, 'x')); calls != 1 || len(sizes) != 2 {
		t.Errorf("one more destination: %d messages in %d calls, want 2 in 1", len(sizes), calls)
	}
	if f := p.Features(); f.GSO || f.DestinationsWithoutGSO != maxPathsWithoutGSO {
		t.Errorf("features %+v, want no GSO", f)
	}
	*now = now.Add(pathLifetime)
	if f := p.Features(); !f.GSO || f.DestinationsWithoutGSO != 0 {
		t.Errorf("after the limits' end: features %+v, want GSO", f)
	}
}

// limitsAt returns limits with a clock that the test moves, and the endpoint of 10.0.x.y.
func limitsAt() (p *pathLimits, now *time.Time, to func(n int) *underlay.Endpoint) {
	now = new(time.Now())
	p = &pathLimits{now: func() time.Time { return *now }}
	return p, now, func(n int) *underlay.Endpoint {
		return &underlay.Endpoint{Dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 9)}
	}
}

func TestFullTableKeepsItsLimitsUntilOneEnds(t *testing.T) {
	p, now, to := limitsAt()
	for i := range maxPaths {
		p.add(&underlay.Run{To: to(i)}, 1400, unlimited)
		*now = now.Add(time.Millisecond)
	}
	before := p.current()
	if after := p.add(&underlay.Run{To: to(maxPaths)}, 1400, unlimited); after != before || len(after.limits) != maxPaths {
		t.Errorf("a further destination changed the full table")
	}
	if l := p.add(&underlay.Run{To: to(0)}, unlimited, 9000).limit(to(0)); l.train.bytes != 1400 || l.datagram.bytes != 9000 {
		t.Errorf("a known destination: got %+v, want both limits", l)
	}
	*now = now.Add(pathLifetime - maxPaths*time.Millisecond + 1500*time.Microsecond) // that of the second one has ended
	table := p.add(&underlay.Run{To: to(maxPaths)}, 1400, unlimited)
	for i, want := range map[int]bool{0: true, 1: false, 2: true, maxPaths - 1: true, maxPaths: true} {
		if known := table.limit(to(i)) != noLimit; known != want {
			t.Errorf("destination %d: has a limit: %v, want %v", i, known, want)
		}
	}
}

// TestRoamingPeerLeavesOthersRoom has a peer with small path MTUs roam over more destinations than the table has room for.
func TestRoamingPeerLeavesOthersRoom(t *testing.T) {
	p, now, to := limitsAt()
	p.add(&underlay.Run{To: to(5000), Peer: 2}, 1400, unlimited)
	for i := range 2 * maxPaths {
		*now = now.Add(time.Millisecond)
		p.add(&underlay.Run{To: to(i), Peer: 1}, 1, unlimited)
	}
	table := p.add(&underlay.Run{To: to(5001), Peer: 2}, 1300, unlimited)
	for n, want := range map[int]int{
		5000: 1400, 5001: 1300, 2*maxPaths - 1: 1, 2*maxPaths - maxPathsOfPeer: 1, 2*maxPaths - maxPathsOfPeer - 1: unlimited, 0: unlimited,
	} {
		if l := table.limit(to(n)); l.train.bytes != want {
			t.Errorf("destination %d: trains are limited to %d bytes, want %d", n, l.train.bytes, want)
		}
	}
	if table.withoutGSO != maxPathsOfPeer {
		t.Errorf("%d destinations without UDP GSO, want %d", table.withoutGSO, maxPathsOfPeer)
	}
}

func TestEachLimitEndsByItself(t *testing.T) {
	p, now, to := limitsAt()
	for _, step := range []struct {
		train, datagram         int // added
		wantTrain, wantDatagram int
	}{
		{1400, unlimited, 1400, unlimited},
		{unlimited, 9000, 1400, 9000},
		{unlimited, 8000, 1400, 8000},
		{unlimited, 8500, 1400, 8000},
		{unlimited, unlimited, unlimited, 8000}, // two minutes after the first
		{unlimited, unlimited, unlimited, 8000},
		{1300, unlimited, 1300, unlimited},
	} {
		if step.train != unlimited || step.datagram != unlimited {
			p.add(&underlay.Run{To: to(1)}, step.train, step.datagram)
		}
		if l := p.current().limit(to(1)); l.train.bytes != step.wantTrain || l.datagram.bytes != step.wantDatagram {
			t.Errorf("after %+v: limits %d and %d", step, l.train.bytes, l.datagram.bytes)
		}
		*now = now.Add(pathLifetime / 4)
	}
}

// TestLimitCostsOthersNoClockRead sends to a destination without a limit, and to one with a limit.
func TestLimitCostsOthersNoClockRead(t *testing.T) {
	k := &faultyKernel{verdict: refuseTrains('x', unix.EIO)}
	p, l, now := limitedLane(t, k)
	sendOnce(t, l, k, runTo(2, 3, 'x'))
	reads := 0
	p.paths.now = func() time.Time { reads++; return *now }
	if sendOnce(t, l, k, runTo(1, 3, 'a'), runTo(2, 1, 'b'), runTo(1, 1, 'c')); reads != 0 {
		t.Errorf("%d clock reads without a limited run, want 0", reads)
	}
	if sendOnce(t, l, k, runTo(2, 3, 'x'), runTo(1, 3, 'a'), runTo(2, 3, 'x')); reads != 1 {
		t.Errorf("%d clock reads for two limited runs, want 1", reads)
	}
}

// TestOversizeTrainIsRefusedOnce: single datagrams are fragmented, trains are not.
func TestOversizeTrainIsRefusedOnce(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.EMSGSIZE} {
		k := &faultyKernel{verdict: refuseTrains('x', errno)}
		p, l, now := limitedLane(t, k)
		small := runTo(1, 3, 'a')
		small.SegSize, small.Parts = 9, [][]byte{small.Parts[0][:27]}
		sendOnce(t, l, k, runTo(1, 3, 'x'))
		if sizes, calls := sendOnce(t, l, k, runTo(1, 3, 'x'), small); calls != 1 || !slices.Equal(sizes, []int{10, 10, 10, 27}) {
			t.Errorf("%v: messages of %v in %d calls, want single datagrams and a train in 1", errno, sizes, calls)
		}
		if f := p.Features(); !f.GSO || f.DestinationsWithoutGSO != 0 {
			t.Errorf("%v revoked GSO: %+v", errno, f)
		}
		*now = now.Add(pathLifetime)
		if _, calls := sendOnce(t, l, k, runTo(1, 3, 'x')); calls != 2 {
			t.Errorf("%v: %d calls after the limit's end, want 2", errno, calls)
		}
	}
}

// TestTooLongDatagramsFailWithoutSystemCalls: the shorter datagram at a run's end leaves, and so do runs of shorter ones.
func TestTooLongDatagramsFailWithoutSystemCalls(t *testing.T) {
	tooLong := func(payload []byte, segmented, _ bool) unix.Errno {
		if segmented && payload[0] == 'x' || len(payload) >= 10 && !segmented {
			return unix.EMSGSIZE
		}
		return 0
	}
	k := &faultyKernel{verdict: tooLong}
	_, l, now := limitedLane(t, k)
	short := runTo(1, 3, 'x')
	short.Parts = [][]byte{short.Parts[0][:25]}
	small := runTo(1, 3, 'a')
	small.SegSize, small.Parts = 9, [][]byte{small.Parts[0][:27]}
	l.Send([]underlay.Run{runTo(1, 3, 'x')})
	k.sent, k.calls = nil, 0
	runs := []underlay.Run{runTo(1, 3, 'x'), runTo(1, 1, 'y'), short, small, runTo(2, 2, 'b')}
	if failed := l.Send(runs); failed != 3 || k.calls != 1 {
		t.Errorf("%d runs failed in %d calls, want 3 in 1", failed, k.calls)
	}
	for i := range runs {
		if tooBig := errors.Is(runs[i].Err, underlay.ErrTooBig); tooBig != (i < 3) {
			t.Errorf("run %d: error %v", i, runs[i].Err)
		}
	}
	if got, want := lengths(k.sent), []int{5, 27, 20}; !slices.Equal(got, want) {
		t.Errorf("sent messages of %v, want %v", got, want)
	}
	if allocs := testing.AllocsPerRun(20, func() { k.sent, k.from = k.sent[:0], k.from[:0]; l.Send(runs[:2]) }); allocs != 0 {
		t.Errorf("got %v allocations, want 0", allocs)
	}
	k.verdict = refuseTrains('-', 0) // the path MTU has grown
	*now = now.Add(pathLifetime)
	if sizes, _ := sendOnce(t, l, k, runTo(1, 3, 'x')); !slices.Equal(sizes, []int{30}) {
		t.Errorf("after the limit's end messages of %v, want a train", sizes)
	}
}

func TestOtherErrorsLimitNoPath(t *testing.T) {
	k := &faultyKernel{verdict: func([]byte, bool, bool) unix.Errno { return unix.EINVAL }}
	p, l, _ := limitedLane(t, k)
	l.Send([]underlay.Run{runTo(1, 3, 'x'), runTo(1, 1, 'x')})
	if table := p.paths.current(); table != nil {
		t.Errorf("got limits %+v, want none", table.limits)
	}
}

// TestSinglyHeldRunsReportDatagramsSent: the run fills more than one batch.
func TestSinglyHeldRunsReportDatagramsSent(t *testing.T) {
	full := false
	k := &faultyKernel{verdict: func(payload []byte, _, _ bool) unix.Errno {
		if full = full || payload[0] == 'z'; full {
			return unix.EAGAIN
		}
		return 0
	}}
	p, l, _ := limitedLane(t, k)
	p.gso = false
	runs := []underlay.Run{runTo(1, 64, 'a'), runTo(1, 62, 'b'), runTo(1, 5, 'c')}
	runs[2].Parts[0][40] = 'z'
	if failed := l.Send(runs); failed != 1 || !errors.Is(runs[2].Err, underlay.ErrSendBufferFull) || runs[2].Sent != 4 {
		t.Errorf("%d runs failed, the last with %v after %d datagrams, want 1 after 4", failed, runs[2].Err, runs[2].Sent)
	}
}

func TestLostTrainsAreSentSinglyExceptTests(t *testing.T) {
	k := &faultyKernel{verdict: refuseTrains('-', 0)}
	p, l, _ := limitedLane(t, k)
	to := runTo(1, 1, 'a').To.Destination()
	p.SetTrainsLost(to, false) // has no effect
	p.SetTrainsLost(to, true)
	if sizes, calls := sendOnce(t, l, k, runTo(1, 3, 'a'), runTo(2, 3, 'b')); calls != 1 || !slices.Equal(sizes, []int{10, 10, 10, 30}) {
		t.Errorf("sent messages of %v in %d calls, want single datagrams to the first destination alone", sizes, calls)
	}
	if f := p.Features(); !f.GSO || f.DestinationsLosingTrains != 1 || f.DestinationsWithoutGSO != 0 {
		t.Errorf("features %+v, want GSO, and 1 destination that loses trains", f)
	}
	test := runTo(1, 2, 't')
	test.DontFragment = true
	if p.paths.table.Load().refuses(&test) {
		t.Error("a test is not sent as a train")
	}
	p.RoutesChanged()
	if f := p.Features(); f.DestinationsLosingTrains != 1 {
		t.Errorf("after a change of routes: features %+v, want the limit to hold until a test", f)
	}
	p.SetTrainsLost(to, false)
	if sizes, _ := sendOnce(t, l, k, runTo(1, 3, 'a')); !slices.Equal(sizes, []int{30}) || p.paths.table.Load() != nil {
		t.Errorf("afterwards messages of %v, want a train, and no limit", sizes)
	}
}

// TestManyLostTrainsLeaveOthersTrains has so many peers lose trains, and then the table of them be full.
func TestManyLostTrainsLeaveOthersTrains(t *testing.T) {
	k := &faultyKernel{verdict: refuseTrains('x', unix.EIO)}
	p, l, now := limitedLane(t, k)
	_, _, to := limitsAt()
	for i := range maxPathsLosingTrains {
		if !p.SetTrainsLost(to(i).Destination(), true) {
			t.Fatalf("destination %d has no room", i)
		}
	}
	if p.SetTrainsLost(to(maxPathsLosingTrains).Destination(), true) || !p.SetTrainsLost(to(0).Destination(), true) {
		t.Error("want no room for one more destination, and room for a known one")
	}
	if f := p.Features(); !f.GSO || f.DestinationsLosingTrains != maxPathsLosingTrains || f.DestinationsWithoutGSO != 0 {
		t.Errorf("features %+v, want GSO", f)
	}
	other := underlay.Run{To: to(maxPathsLosingTrains), Parts: [][]byte{bytes.Repeat([]byte{'a'}, 30)}, SegSize: 10, Segments: 3}
	if sizes, _ := sendOnce(t, l, k, other); !slices.Equal(sizes, []int{30}) {
		t.Errorf("sent messages of %v to another destination, want a train", sizes)
	}
	refused := other
	refused.Parts = [][]byte{bytes.Repeat([]byte{'x'}, 30)}
	sendOnce(t, l, k, refused)
	if _, calls := sendOnce(t, l, k, refused); calls != 1 {
		t.Errorf("sent to a device without GSO in %d calls, want 1", calls)
	}
	*now = now.Add(pathLifetime)
	if f := p.Features(); f.DestinationsWithoutGSO != 0 || f.DestinationsLosingTrains != maxPathsLosingTrains {
		t.Errorf("after the refusal's end: features %+v, want lost trains", f)
	}
	for i := range maxPathsLosingTrains {
		p.SetTrainsLost(to(i).Destination(), false)
	}
	if p.paths.table.Load() != nil {
		t.Error("the table is still there")
	}
}

func TestArrivingTrainsKeepRefusedLimit(t *testing.T) {
	k := &faultyKernel{verdict: refuseTrains('x', unix.EIO)}
	p, l, _ := limitedLane(t, k)
	sendOnce(t, l, k, runTo(1, 3, 'x'))
	p.SetTrainsLost(runTo(1, 1, 'x').To.Destination(), false)
	if f := p.Features(); f.DestinationsWithoutGSO != 1 {
		t.Errorf("features %+v, want the limit that the kernel caused", f)
	}
}
