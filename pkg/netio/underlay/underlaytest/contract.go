// SPDX-License-Identifier: Apache-2.0

package underlaytest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"net"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// timeout bounds every wait of the contract. Even a loaded machine needs far less.
const timeout = 20 * time.Second

// Subject is a pair of new ports with one lane each that reach each other, without loss.
type Subject struct {
	A, B underlay.Port
	// ToB returns the endpoint at which A reaches B, over IPv4 or IPv6.
	ToB func(ipv6 bool) underlay.Endpoint
}

// Factory returns a Subject for one test. It closes both ports when the test ends.
type Factory func(t *testing.T) Subject

// RunContract tests the contract in the comments of package underlay.
func RunContract(t *testing.T, factory Factory) {
	tests := sourceContract()
	maps.Copy(tests, tryContract())
	maps.Copy(tests, map[string]func(*testing.T, Subject){
		"DeliversSizesAndOrder":           deliversSizesAndOrder,
		"CarriesEmptyDatagrams":           carriesEmptyDatagrams,
		"KeepsOrderOverManyRuns":          keepsOrderOverManyRuns,
		"AnswersReachTheSender":           answersReachTheSender,
		"CarriesECN":                      carriesECN,
		"MarksTruncatedDatagrams":         marksTruncatedDatagrams,
		"RefusesMalformedRuns":            refusesMalformedRuns,
		"FailedRunDoesNotStopOthers":      failedRunDoesNotStopOthers,
		"SendToNeedsNoLane":               sendToNeedsNoLane,
		"CloseWakesReceivers":             closeWakesReceivers,
		"ClosedPortAnswersErrClosed":      closedPortAnswersErrClosed,
		"SendAndReceiveWithoutAllocating": sendAndReceiveWithoutAllocating,
	})
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { test(t, factory(t)) })
	}
}

// newRX returns n elements with buffers of the given size.
func newRX(n, size int) []underlay.Datagrams {
	rx := make([]underlay.Datagrams, n)
	for i := range rx {
		rx[i].Buf = make([]byte, size)
	}
	return rx
}

// receive collects count datagrams from lane, each copied out of its element.
func receive(t *testing.T, lane underlay.Receiver, count int) (datagrams [][]byte, from underlay.Endpoint) {
	t.Helper()
	got := make(chan struct{})
	var err error
	go func() {
		defer close(got)
		rx := newRX(8, 65535)
		for len(datagrams) < count && err == nil {
			var n int
			n, err = lane.Recv(rx)
			for i := range n {
				datagrams = append(datagrams, Flatten(&rx[i])...)
				from = rx[i].From
			}
		}
	}()
	select {
	case <-got:
	case <-time.After(timeout):
		t.Fatalf("datagrams did not arrive: wanted %d", count)
	}
	if err != nil {
		t.Fatal(err)
	}
	return datagrams, from
}

// Flatten returns copies of the datagrams of one received element.
func Flatten(d *underlay.Datagrams) (datagrams [][]byte) {
	payload := d.Buf[:d.N]
	for first := true; first || len(payload) > 0; first = false {
		n := min(max(d.SegSize, 1), len(payload))
		datagrams = append(datagrams, bytes.Clone(payload[:n]))
		payload = payload[n:]
	}
	return datagrams
}

// makeRun returns a run of numbered datagrams in the given number of parts, the last datagram of length last.
func makeRun(to *underlay.Endpoint, segments, segSize, last, parts int, number uint32) underlay.Run {
	r := underlay.Run{To: to, SegSize: segSize, Segments: segments}
	per := (segments + parts - 1) / parts
	for s := 0; s < segments; s += per {
		var part []byte
		for i := s; i < min(s+per, segments); i++ {
			part = append(part, numbered(number+uint32(i), segSize)...)
		}
		if s+per >= segments {
			part = part[:len(part)-segSize+last]
		}
		r.Parts = append(r.Parts, part)
	}
	return r
}

// numbered returns size bytes that begin with the number and depend on it.
func numbered(number uint32, size int) []byte {
	b := bytes.Repeat([]byte{byte(number)}, max(size, 4))
	binary.BigEndian.PutUint32(b, number)
	return b[:size]
}

func send(t *testing.T, lane underlay.Lane, runs ...underlay.Run) {
	t.Helper()
	if failed := lane.Send(runs); failed != 0 {
		for i := range runs {
			t.Errorf("run %d: %v", i, runs[i].Err)
		}
		t.Fatalf("%d of %d runs failed", failed, len(runs))
	}
}

// expect fails unless got are the datagrams of runs, in order.
func expect(t *testing.T, got [][]byte, runs ...underlay.Run) {
	t.Helper()
	var want [][]byte
	for i := range runs {
		for d := range runs[i].Datagrams {
			want = append(want, d)
		}
	}
	if len(got) != len(want) {
		t.Fatalf("%d datagrams arrived, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Fatalf("datagram %d has %d bytes (% x...), want %d (% x...)",
				i, len(got[i]), got[i][:min(4, len(got[i]))], len(want[i]), want[i][:min(4, len(want[i]))])
		}
	}
}

func deliversSizesAndOrder(t *testing.T, s Subject) {
	for _, c := range []struct{ segments, segSize, last, parts int }{
		{1, 32, 32, 1},
		{1, 1, 1, 1},
		{1, 1452, 1452, 1},
		{2, 100, 1, 1},
		{2, 100, 100, 2},
		{10, 1452, 77, 1},
		{10, 1452, 77, 10},
		{10, 1452, 1452, 3},
		{45, 1452, 1000, 45},
		{64, 64, 64, 1},
		{64, 64, 63, 64},
		{64, 1023, 1023, 2},
	} {
		for _, ipv6 := range []bool{false, true} {
			if ipv6 && !s.A.Features().IPv6 {
				continue
			}
			to := s.ToB(ipv6)
			run := makeRun(&to, c.segments, c.segSize, c.last, c.parts, 1)
			send(t, s.A.Lane(0), run)
			got, _ := receive(t, s.B.Lane(0), c.segments)
			expect(t, got, run)
		}
	}
}

func carriesEmptyDatagrams(t *testing.T, s Subject) {
	to := s.ToB(false)
	runs := []underlay.Run{
		{To: &to, Segments: 1}, {To: &to, Segments: 1, Parts: [][]byte{{}}}, makeRun(&to, 1, 5, 5, 1, 7),
	}
	send(t, s.A.Lane(0), runs...)
	got, _ := receive(t, s.B.Lane(0), len(runs))
	expect(t, got, runs...)
}

func keepsOrderOverManyRuns(t *testing.T, s Subject) {
	to4, to6 := s.ToB(false), s.ToB(s.A.Features().IPv6)
	var runs []underlay.Run
	number := uint32(0)
	for i := range 200 {
		segments, to := 1+i%5, &to4
		if i >= 100 {
			to = &to6
		}
		runs = append(runs, makeRun(to, segments, 64+i, 32+i, 1+i%2, number))
		number += uint32(segments)
	}
	send(t, s.A.Lane(0), runs...)
	got, _ := receive(t, s.B.Lane(0), int(number))
	expect(t, got, runs...)
}

func answersReachTheSender(t *testing.T, s Subject) {
	for _, ipv6 := range []bool{false, true} {
		if ipv6 && !s.A.Features().IPv6 {
			continue
		}
		to := s.ToB(ipv6)
		run := makeRun(&to, 3, 100, 50, 1, 1)
		send(t, s.A.Lane(0), run)
		_, from := receive(t, s.B.Lane(0), 3)
		if from.Src != to.Dst.Addr() {
			t.Errorf("From.Src = %v, want the address that was sent to, %v", from.Src, to.Dst.Addr())
		}
		if from.Dst.Port() != s.A.LocalPort() || from.Dst.Addr().Is4In6() {
			t.Errorf("From.Dst = %v, want port %d and no 4-in-6", from.Dst, s.A.LocalPort())
		}
		run.To = &from
		send(t, s.B.Lane(0), run)
		got, back := receive(t, s.A.Lane(0), 3)
		expect(t, got, run)
		if back.Dst != to.Dst {
			t.Errorf("the answer came from %v, want %v", back.Dst, to.Dst)
		}
	}
}

// carriesECN receives each run before the next is sent, into the same element. No field may keep its former value.
func carriesECN(t *testing.T, s Subject) {
	rx := newRX(1, 65535)
	for _, ipv6 := range []bool{false, true} {
		if ipv6 && !s.A.Features().IPv6 {
			continue
		}
		to := s.ToB(ipv6)
		for _, segments := range []int{1, 3} {
			for _, ecn := range []packet.ECN{packet.CE, packet.NotECT, packet.ECT0, packet.ECT1, packet.NotECT} {
				run := makeRun(&to, segments, 100, 100, 1, 1)
				run.ECN = ecn
				send(t, s.A.Lane(0), run)
				expectECN(t, s.B.Lane(0), rx, 100*segments, ecn)
			}
		}
		if err := s.A.SendTo(&to, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		expectECN(t, s.B.Lane(0), rx, 10, packet.NotECT)
	}
}

// expectECN receives that many bytes into rx, one element at a time.
func expectECN(t *testing.T, lane underlay.Lane, rx []underlay.Datagrams, size int, want packet.ECN) {
	t.Helper()
	for got := 0; got < size; got += rx[0].N {
		if n, err := lane.Recv(rx); n != 1 || err != nil {
			t.Fatalf("Recv = %d, %v", n, err)
		}
		if rx[0].ECN != want {
			t.Errorf("%d of %d bytes from %v arrived with ECN %d, want %d", rx[0].N, size, rx[0].From.Dst, rx[0].ECN, want)
		}
	}
}

func marksTruncatedDatagrams(t *testing.T, s Subject) {
	to := s.ToB(false)
	send(t, s.A.Lane(0), makeRun(&to, 1, 500, 500, 1, 1), makeRun(&to, 1, 20, 20, 1, 2))
	rx := newRX(1, 100)
	for i, want := range []struct {
		n         int
		truncated bool
	}{{100, true}, {20, false}} {
		if n, err := s.B.Lane(0).Recv(rx); n != 1 || err != nil {
			t.Fatalf("Recv = %d, %v", n, err)
		}
		if rx[0].N != want.n || rx[0].Truncated != want.truncated || rx[0].SegSize != rx[0].N {
			t.Errorf("element %d: N %d, SegSize %d, truncated %v; want %+v", i, rx[0].N, rx[0].SegSize, rx[0].Truncated, want)
		}
	}
}

func refusesMalformedRuns(t *testing.T, s Subject) {
	to := s.ToB(false)
	part := make([]byte, 200)
	for name, c := range map[string]struct {
		run  underlay.Run
		want error
	}{
		"no endpoint":          {underlay.Run{Parts: [][]byte{part}, SegSize: 200, Segments: 1}, underlay.ErrBadRun},
		"invalid endpoint":     {underlay.Run{To: &underlay.Endpoint{}, Segments: 1}, underlay.ErrBadRun},
		"no segments":          {underlay.Run{To: &to, Parts: [][]byte{part}, SegSize: 200}, underlay.ErrBadRun},
		"65 segments":          {underlay.Run{To: &to, Parts: [][]byte{part[:65]}, SegSize: 1, Segments: 65}, underlay.ErrBadRun},
		"65 parts":             {underlay.Run{To: &to, Parts: make([][]byte, 65), Segments: 1}, underlay.ErrBadRun},
		"no segment size":      {underlay.Run{To: &to, Parts: [][]byte{part}, Segments: 2}, underlay.ErrBadRun},
		"negative size":        {underlay.Run{To: &to, Parts: [][]byte{part}, SegSize: -100, Segments: 2}, underlay.ErrBadRun},
		"too few bytes":        {underlay.Run{To: &to, Parts: [][]byte{part}, SegSize: 100, Segments: 3}, underlay.ErrBadRun},
		"too many bytes":       {underlay.Run{To: &to, Parts: [][]byte{part}, SegSize: 99, Segments: 2}, underlay.ErrBadRun},
		"straddling datagram":  {underlay.Run{To: &to, Parts: [][]byte{part[:50], part[50:]}, SegSize: 100, Segments: 2}, underlay.ErrBadRun},
		"single in two parts":  {underlay.Run{To: &to, Parts: [][]byte{part[:50], part[50:]}, SegSize: 200, Segments: 1}, underlay.ErrBadRun},
		"more than UDP can do": {underlay.Run{To: &to, Parts: [][]byte{make([]byte, 65508)}, Segments: 1}, underlay.ErrTooBig},
	} {
		runs := []underlay.Run{c.run}
		if failed := s.A.Lane(0).Send(runs); failed != 1 || !errors.Is(runs[0].Err, c.want) {
			t.Errorf("%s: failed %d, error %v; want %v", name, failed, runs[0].Err, c.want)
		}
	}
	largest := underlay.Run{To: &to, Parts: [][]byte{make([]byte, underlay.MaxDatagramRun)}, Segments: 1}
	send(t, s.A.Lane(0), largest)
	got, _ := receive(t, s.B.Lane(0), 1)
	expect(t, got, largest)
}

func failedRunDoesNotStopOthers(t *testing.T, s Subject) {
	to := s.ToB(false)
	good := []underlay.Run{makeRun(&to, 3, 100, 100, 1, 1), makeRun(&to, 1, 100, 100, 1, 4), makeRun(&to, 9, 100, 10, 1, 5)}
	bad := underlay.Run{To: &to, Segments: 65}
	runs := []underlay.Run{bad, good[0], bad, good[1], good[2], bad}
	if failed := s.A.Lane(0).Send(runs); failed != 3 {
		t.Errorf("%d runs failed, want 3", failed)
	}
	for i := range runs {
		if wants := i == 0 || i == 2 || i == 5; wants != (runs[i].Err != nil) {
			t.Errorf("run %d: %v", i, runs[i].Err)
		}
	}
	got, _ := receive(t, s.B.Lane(0), 13)
	expect(t, got, good...)
	runs[0] = good[1]
	runs[0].Err = net.ErrClosed
	send(t, s.A.Lane(0), runs[0]) // Send resets an old Err
}

func sendToNeedsNoLane(t *testing.T, s Subject) {
	to := s.ToB(false)
	errs := make(chan error)
	for i := range 4 {
		go func() { errs <- s.A.SendTo(&to, numbered(uint32(i), 148)) }()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	got, _ := receive(t, s.B.Lane(0), 4)
	seen := make(map[string]bool)
	for _, d := range got {
		seen[string(d)] = true
	}
	for i := range uint32(4) {
		if !seen[string(numbered(i, 148))] {
			t.Errorf("datagram %d did not arrive", i)
		}
	}
	if err := s.A.SendTo(&to, make([]byte, 65508)); !errors.Is(err, underlay.ErrTooBig) {
		t.Errorf("SendTo of more than UDP can carry: %v", err)
	}
}

func closeWakesReceivers(t *testing.T, s Subject) {
	woken := make(chan error, 1)
	entering := make(chan struct{})
	go func() {
		rx := newRX(4, 65535)
		close(entering)
		_, err := s.B.Lane(0).Recv(rx)
		woken <- err
	}()
	<-entering
	if err := s.B.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-woken:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv returned %v, want net.ErrClosed", err)
		}
	case <-time.After(timeout):
		t.Fatal("Recv still blocks after Close")
	}
}

func closedPortAnswersErrClosed(t *testing.T, s Subject) {
	to := s.ToB(false)
	for range 2 {
		if err := s.A.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.A.Lane(0).Recv(newRX(1, 65535)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv = %d, %v", n, err)
	}
	runs := []underlay.Run{makeRun(&to, 1, 10, 10, 1, 1), makeRun(&to, 2, 10, 10, 1, 1)}
	if failed := s.A.Lane(0).Send(runs); failed != 2 || !errors.Is(runs[0].Err, net.ErrClosed) || !errors.Is(runs[1].Err, net.ErrClosed) {
		t.Errorf("Send failed %d: %v, %v", failed, runs[0].Err, runs[1].Err)
	}
	if err := s.A.SendTo(&to, nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("SendTo: %v", err)
	}
}

// allocations returns the minimum number of allocations of f. Other goroutines of the process, such as a supervisor,
// may allocate meanwhile.
func allocations(f func()) float64 {
	least := testing.AllocsPerRun(20, f)
	for range 9 {
		if least == 0 {
			break
		}
		least = min(least, testing.AllocsPerRun(20, f))
	}
	return least
}

func sendAndReceiveWithoutAllocating(t *testing.T, s Subject) {
	to := s.ToB(false)
	rx := newRX(64, 65535)
	for _, segments := range []int{1, 45} {
		runs := []underlay.Run{makeRun(&to, segments, 1400, 1400, 1, 1), makeRun(&to, segments, 1000, 900, segments, 1)}
		runs[1].ECN = packet.ECT0
		allocs := allocations(func() {
			if s.A.Lane(0).Send(runs) != 0 {
				t.Fatal(runs[0].Err, runs[1].Err)
			}
			for got := 0; got < 2*segments; {
				n, err := s.B.Lane(0).Recv(rx)
				if err != nil {
					t.Fatal(err)
				}
				for i := range n {
					got += (rx[i].N + rx[i].SegSize - 1) / rx[i].SegSize
				}
			}
		})
		if allocs != 0 {
			t.Errorf("sending and receiving two runs of %d allocates %v times", segments, allocs)
		}
	}
	datagram := make([]byte, 148)
	allocs := allocations(func() {
		if err := s.A.SendTo(&to, datagram); err != nil {
			t.Fatal(err)
		}
		if _, err := s.B.Lane(0).Recv(rx); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 && !raceEnabled {
		t.Errorf("SendTo allocates %v times", allocs)
	}
}
