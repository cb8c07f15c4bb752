// SPDX-License-Identifier: Apache-2.0

package underlaytest

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// sourceContract is the part of the contract about OpenSource.
func sourceContract() map[string]func(*testing.T, Subject) {
	return map[string]func(*testing.T, Subject){
		"SourcesSendFromTheirPort":        sourcesSendFromTheirPort,
		"SourcesKeepOrder":                sourcesKeepOrder,
		"SourcesAreNumbered":              sourcesAreNumbered,
		"SourcesAreAtMostMaxSources":      sourcesAreAtMostMaxSources,
		"RefusesUnopenedSources":          refusesUnopenedSources,
		"SecondaryPortsReceiveSeparately": secondaryPortsReceiveSeparately,
		"SecondaryPortsEndWithPort":       secondaryPortsEndWithPort,
		"ClosedPortHasNoSources":          closedPortHasNoSources,
		"SourcesOpenWhileLanesSend":       sourcesOpenWhileLanesSend,
		"SourcesSendWithoutAllocating":    sourcesSendWithoutAllocating,
	}
}

// firstSourcePort is the first port that openSources tries.
const firstSourcePort = 61000

// openSources opens n sources on free ports.
func openSources(t *testing.T, p underlay.Port, n int) {
	t.Helper()
	for port := uint16(firstSourcePort); p.Source(n) == 0; port++ {
		if _, err := p.OpenSource(port); err != nil && !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// fromSource returns r with another source.
func fromSource(r underlay.Run, source int) underlay.Run {
	r.Source = source
	return r
}

// receiveBySource collects count datagrams from lane, by source port.
func receiveBySource(t *testing.T, lane underlay.Lane, count int) map[uint16][][]byte {
	t.Helper()
	got := make(map[uint16][][]byte)
	rx := newRX(8, 65535)
	for count > 0 {
		n, err := lane.Recv(rx)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			datagrams, port := Flatten(&rx[i]), rx[i].From.Dst.Port()
			got[port] = append(got[port], datagrams...)
			count -= len(datagrams)
		}
	}
	return got
}

func sourcesSendFromTheirPort(t *testing.T, s Subject) {
	openSources(t, s.A, 3)
	rx := newRX(1, 65535)
	for _, ipv6 := range []bool{false, true} {
		if ipv6 && !s.A.Features().IPv6 {
			continue
		}
		to := s.ToB(ipv6)
		to.Src = to.Dst.Addr() // a Subject's ends are on one host, or ignore it
		for source := range 4 {
			run := fromSource(makeRun(&to, 3, 100, 50, 1, 1), source)
			run.ECN = packet.ECT1
			send(t, s.A.Lane(0), run)
			var got [][]byte
			for len(got) < 3 {
				if n, err := s.B.Lane(0).Recv(rx); n != 1 || err != nil {
					t.Fatalf("Recv = %d, %v", n, err)
				}
				if port := rx[0].From.Dst.Port(); port != s.A.Source(source) || rx[0].ECN != packet.ECT1 {
					t.Errorf("source %d arrived from port %d with ECN %d, want %d and that sent", source, port, rx[0].ECN, s.A.Source(source))
				}
				got = append(got, Flatten(&rx[0])...)
			}
			expect(t, got, run)
		}
	}
}

// sourcesKeepOrder sends runs of changing sources, more than fit into one system call.
func sourcesKeepOrder(t *testing.T, s Subject) {
	const sources = 4
	openSources(t, s.A, sources)
	to4, to6 := s.ToB(false), s.ToB(s.A.Features().IPv6)
	var runs []underlay.Run
	want := make(map[uint16][]underlay.Run)
	number := uint32(0)
	for i := range 300 {
		source, segments, to := i/3%(sources+1), 1+i%5, &to4
		if i%7 > 3 {
			to = &to6
		}
		run := fromSource(makeRun(to, segments, 64+i, 32+i, 1+i%2, number), source)
		runs = append(runs, run)
		want[s.A.Source(source)] = append(want[s.A.Source(source)], run)
		number += uint32(segments)
	}
	send(t, s.A.Lane(0), runs...)
	got := receiveBySource(t, s.B.Lane(0), int(number))
	for port, runs := range want {
		expect(t, got[port], runs...)
	}
}

func sourcesAreNumbered(t *testing.T, s Subject) {
	if got := s.A.Source(0); got != s.A.LocalPort() {
		t.Errorf("source 0 is port %d, want the listen port %d", got, s.A.LocalPort())
	}
	openSources(t, s.A, 2)
	for source := 1; source <= 2; source++ {
		if got, err := s.A.OpenSource(s.A.Source(source)); got != source || err != nil {
			t.Errorf("opening source %d again: %d, %v", source, got, err)
		}
	}
	for _, source := range []int{-1, 3, underlay.MaxSources + 1} {
		if got := s.A.Source(source); got != 0 {
			t.Errorf("source %d, which is not open, has port %d", source, got)
		}
	}
	for port, want := range map[uint16]error{s.A.LocalPort(): syscall.EADDRINUSE, 0: syscall.EINVAL} {
		if _, err := s.A.OpenSource(port); !errors.Is(err, want) {
			t.Errorf("opening port %d: %v, want %v", port, err, want)
		}
	}
	if s.A.Source(3) != 0 {
		t.Error("a source that failed was counted")
	}
}

func sourcesAreAtMostMaxSources(t *testing.T, s Subject) {
	openSources(t, s.A, underlay.MaxSources)
	last := s.A.Source(underlay.MaxSources)
	if source, err := s.A.OpenSource(last + 1); err == nil {
		t.Errorf("opened source %d", source)
	}
	if source, err := s.A.OpenSource(last); source != underlay.MaxSources || err != nil {
		t.Errorf("the last source again: %d, %v", source, err)
	}
	to := s.ToB(false)
	run := fromSource(makeRun(&to, 2, 10, 10, 1, 1), underlay.MaxSources)
	send(t, s.A.Lane(0), run)
	expect(t, receiveBySource(t, s.B.Lane(0), 2)[last], run)
}

func refusesUnopenedSources(t *testing.T, s Subject) {
	openSources(t, s.A, 1)
	to := s.ToB(false)
	good := []underlay.Run{makeRun(&to, 2, 100, 100, 1, 1), fromSource(makeRun(&to, 1, 100, 100, 1, 3), 1)}
	runs := []underlay.Run{good[0]}
	for _, source := range []int{-1, 2, underlay.MaxSources, underlay.MaxSources + 1} {
		runs = append(runs, fromSource(good[0], source))
	}
	runs = append(runs, good[1])
	if failed := s.A.Lane(0).Send(runs); failed != 4 {
		t.Errorf("%d runs failed, want 4", failed)
	}
	for i := range runs {
		if bad := i > 0 && i < 5; bad != errors.Is(runs[i].Err, underlay.ErrBadRun) {
			t.Errorf("a run from source %d: %v", runs[i].Source, runs[i].Err)
		}
	}
	got := receiveBySource(t, s.B.Lane(0), 3)
	expect(t, got[s.A.Source(0)], good[0])
	expect(t, got[s.A.Source(1)], good[1])
}

// secondaryPortsReceiveSeparately sends to each source and to the listen port.
func secondaryPortsReceiveSeparately(t *testing.T, s Subject) {
	openSources(t, s.A, 2)
	to := s.ToB(false)
	for source := range 3 {
		send(t, s.A.Lane(0), fromSource(makeRun(&to, 1, 10, 10, 1, 1), source))
		_, back := receive(t, s.B.Lane(0), 1)
		answer := makeRun(&back, 1, 1000, 1000, 1, uint32(source))
		send(t, s.B.Lane(0), answer)
		in := s.A.SecondaryPorts()
		if source == 0 {
			in = s.A.Lane(0)
		}
		got, from := receive(t, in, 1)
		expect(t, got, answer)
		if from.Dst.Port() != s.B.LocalPort() {
			t.Errorf("source %d got an answer from %v", source, from.Dst)
		}
	}
}

// secondaryPortsEndWithPort closes a port without a source while SecondaryPorts is waiting.
func secondaryPortsEndWithPort(t *testing.T, s Subject) {
	ended := make(chan error)
	go func() {
		rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
		_, err := s.A.SecondaryPorts().Recv(rx)
		ended <- err
	}()
	if err := s.A.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Recv returned %v, want net.ErrClosed", err)
	}
}

func closedPortHasNoSources(t *testing.T, s Subject) {
	openSources(t, s.A, 2)
	port := s.A.Source(2)
	if err := s.A.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.A.OpenSource(port); !errors.Is(err, net.ErrClosed) {
		t.Errorf("opening a source of a closed port: %v", err)
	}
	to := s.ToB(false)
	runs := []underlay.Run{fromSource(makeRun(&to, 1, 10, 10, 1, 1), 2)}
	if failed := s.A.Lane(0).Send(runs); failed != 1 || !errors.Is(runs[0].Err, net.ErrClosed) {
		t.Errorf("Send failed %d: %v", failed, runs[0].Err)
	}
	if _, err := s.B.OpenSource(port); err != nil {
		t.Errorf("the port is not free again: %v", err)
	}
}

// sourcesOpenWhileLanesSend is for the race detector: a source is usable as soon as it has a number.
func sourcesOpenWhileLanesSend(t *testing.T, s Subject) {
	to := s.ToB(false)
	numbers := make(chan int, 16)
	var sending sync.WaitGroup
	sending.Go(func() {
		for source := range numbers {
			runs := []underlay.Run{makeRun(&to, 1, 10, 10, 1, 1), fromSource(makeRun(&to, 2, 10, 10, 1, 2), source)}
			if s.A.Lane(0).Send(runs) != 0 {
				t.Error(runs[0].Err, runs[1].Err)
			}
		}
	})
	for source := 1; source <= cap(numbers); source++ {
		openSources(t, s.A, source)
		numbers <- source
	}
	close(numbers)
	done := make(chan struct{})
	go func() {
		defer close(done)
		sending.Wait()
	}()
	select {
	case <-done:
	case <-time.After(timeout):
		t.Fatal("Send still blocks")
	}
	if got := receiveBySource(t, s.B.Lane(0), 3*cap(numbers)); len(got) != 1+cap(numbers) {
		t.Errorf("datagrams came from %d ports, want %d", len(got), 1+cap(numbers))
	}
}

func sourcesSendWithoutAllocating(t *testing.T, s Subject) {
	openSources(t, s.A, 2)
	to := s.ToB(false)
	var runs []underlay.Run
	for i := range 9 {
		runs = append(runs, fromSource(makeRun(&to, 3, 500, 500, 1, 1), i%3))
	}
	rx := newRX(64, 65535)
	allocs := allocations(func() {
		if s.A.Lane(0).Send(runs) != 0 {
			t.Fatal(runs[0].Err)
		}
		for got := 0; got < 9*1500; {
			n, err := s.B.Lane(0).Recv(rx)
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				got += rx[i].N
			}
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
