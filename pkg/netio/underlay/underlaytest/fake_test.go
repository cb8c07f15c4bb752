// SPDX-License-Identifier: Apache-2.0

package underlaytest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/underlaytest"
)

func TestFakePassesContract(t *testing.T) {
	underlaytest.RunContract(t, func(t *testing.T) underlaytest.Subject {
		a, b := underlaytest.Pipe(1)
		t.Cleanup(func() { _, _ = a.Close(), b.Close() })
		return underlaytest.Subject{A: a, B: b, ToB: b.Endpoint}
	})
}

func TestFakeLaneReachesItsCounterpart(t *testing.T) {
	a, b := underlaytest.Pipe(3)
	defer a.Close()
	defer b.Close()
	to := b.Endpoint(true)
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	for i := range 3 {
		runs := []underlay.Run{{To: &to, Parts: [][]byte{{byte(i)}}, Segments: 1}}
		a.Lane(i).Send(runs)
		if n, err := b.Lane(i).Recv(rx); n != 1 || err != nil || rx[0].Buf[0] != byte(i) {
			t.Errorf("lane %d: got %d, error %v, % x, want 1, no error", i, n, err, rx[0].Buf[:1])
		}
	}
}

func TestFilterDropsDuplicatesAndDelays(t *testing.T) {
	verdicts := []underlaytest.Verdict{underlaytest.Deliver, underlaytest.Drop, underlaytest.Duplicate, underlaytest.Delay, underlaytest.Deliver}
	network := underlaytest.NewNetwork(func(_, _ netip.AddrPort, d []byte) underlaytest.Verdict { return verdicts[d[0]] })
	a, b := openPair(t, network)
	to := b.Endpoint(false)
	run := underlay.Run{To: &to, Parts: [][]byte{{0, 1, 2}, {3, 4}}, SegSize: 2, Segments: 3}
	if failed := a.Lane(0).Send([]underlay.Run{run}); failed != 1 {
		t.Fatalf("a run with a short part in the middle was sent")
	}
	run.SegSize, run.Segments = 1, 5
	run.Parts = [][]byte{{0, 1, 2, 3, 4}}
	if runs := []underlay.Run{run}; a.Lane(0).Send(runs) != 0 {
		t.Fatal(runs[0].Err)
	}
	rx := make([]underlay.Datagrams, 10)
	for i := range rx {
		rx[i].Buf = make([]byte, 65535)
	}
	n, err := b.Lane(0).Recv(rx)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	for i := range n {
		got = append(got, rx[i].Buf[:rx[i].N]...)
	}
	if want := "\x00\x02\x02\x04\x03"; string(got) != want {
		t.Errorf("got % x, want % x", got, want)
	}
}

// TestRouterRewritesAddressesAndDelays: nothing arrives before the router passes it on, from the address that it names.
func TestRouterRewritesAddressesAndDelays(t *testing.T) {
	var held []underlaytest.Routed
	network := underlaytest.NewRoutedNetwork(func(d underlaytest.Routed) {
		d.Payload = bytes.Clone(d.Payload)
		held = append(held, d)
	})
	a, b := openPair(t, network)
	to := b.Endpoint(false)
	run := underlay.Run{To: &to, Parts: [][]byte{{1, 2, 3}}, SegSize: 2, Segments: 2}
	if err := a.SendRun(&run); err != nil || len(held) != 2 {
		t.Fatalf("the router got %d datagrams, error %v, want 2, no error", len(held), err)
	}
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	if n := b.Lane(0).TryRecv(rx); n != 0 {
		t.Fatalf("%d datagrams arrived before the router delivered any", n)
	}
	nat := netip.MustParseAddrPort("198.51.100.1:7")
	held[1].From = nat
	if !network.Deliver(held[1]) || b.Lane(0).TryRecv(rx) != 1 || rx[0].From.Dst != nat || rx[0].N != 1 || rx[0].Buf[0] != 3 {
		t.Errorf("got % x from %v, want 03 from %v", rx[0].Buf[:rx[0].N], rx[0].From.Dst, nat)
	}
	held[0].To = nat
	if network.Deliver(held[0]) {
		t.Error("a datagram was delivered to an address without a port")
	}
}

func openPair(t *testing.T, n *underlaytest.Network) (a, b *underlaytest.Fake) {
	t.Helper()
	a, err := n.Open(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1"), 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	b, err = n.Open(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2"), 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func TestFakePortIsTakenUntilClosed(t *testing.T) {
	network := underlaytest.NewNetwork(nil)
	a, _ := openPair(t, network)
	v4, v6 := a.Endpoint(false).Dst.Addr(), a.Endpoint(true).Dst.Addr()
	if _, err := network.Open(v4, v6, 1, 1); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second open: got error %v, want %v", err, syscall.EADDRINUSE)
	}
	a.Close()
	if _, err := network.Open(v4, v6, 1, 1); err != nil {
		t.Errorf("open after close: %v", err)
	}
}

// FuzzCheckedRunsSplitAsDeclared passes Check runs built from arbitrary numbers. Runs that it accepts must come out of
// Datagrams as exactly Segments datagrams, all of SegSize but the last.
func FuzzCheckedRunsSplitAsDeclared(f *testing.F) {
	f.Add(3, 100, []byte{0, 200, 0, 50})
	f.Add(1, 0, []byte{})
	f.Add(64, 1, []byte{0, 64})
	f.Add(-1, -1, []byte{1, 1, 1})
	f.Fuzz(func(t *testing.T, segments, segSize int, lengths []byte) {
		to := underlay.Endpoint{Dst: netip.MustParseAddrPort("10.0.0.1:1")}
		r := underlay.Run{To: &to, Segments: segments, SegSize: segSize}
		total := 0
		for ; len(lengths) >= 2 && total < 1<<18; lengths = lengths[2:] {
			n := int(binary.BigEndian.Uint16(lengths))
			total += n
			r.Parts = append(r.Parts, make([]byte, n))
		}
		if r.Check() != nil {
			return
		}
		count, size := 0, 0
		for d := range r.Datagrams {
			count++
			size += len(d)
			if segments > 1 && count < segments && len(d) != segSize {
				t.Fatalf("datagram %d has %d bytes, want %d", count, len(d), segSize)
			}
		}
		if count != segments || size != total {
			t.Fatalf("got %d datagrams of %d bytes, want %d of %d", count, size, segments, total)
		}
	})
}

func TestFakePassesSelectorContract(t *testing.T) {
	underlaytest.RunSelectorContract(t, func(t *testing.T, lanes int) underlaytest.Subject {
		network := underlaytest.NewNetwork(nil)
		a, _ := openPair(t, network)
		b, err := network.Open(netip.MustParseAddr("10.0.0.3"), netip.MustParseAddr("fd00::3"), 1, lanes)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return underlaytest.Subject{A: a, B: b, ToB: b.Endpoint}
	})
}

func TestFakeTakesOverWhatWaits(t *testing.T) {
	network := underlaytest.NewNetwork(nil)
	a, b := openPair(t, network)
	v4, v6, port := b.Endpoint(false).Dst.Addr(), b.Endpoint(true).Dst.Addr(), b.LocalPort()
	const source = 4000
	if _, err := b.OpenSource(source); err != nil {
		t.Fatal(err)
	}
	for _, port := range []uint16{port, source} {
		if err := a.SendTo(&underlay.Endpoint{Dst: netip.AddrPortFrom(v4, port)}, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	b.Keep()
	b.Close()
	next, err := network.Open(v4, v6, port, b.Lanes())
	if err != nil {
		t.Fatal(err)
	}
	next.TakeOver(b)
	for _, r := range []underlay.Receiver{next.Lane(0), next.SecondaryPorts()} {
		rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
		if n, err := r.Recv(rx); err != nil || n != 1 || rx[0].N != 1 || rx[0].From.Dst != a.Endpoint(false).Dst {
			t.Errorf("received %d datagrams of %d bytes from %v, error %v", n, rx[0].N, rx[0].From.Dst, err)
		}
	}
	if sources := b.SocketDrops(nil); sources != (underlay.SocketDrops{}) {
		t.Errorf("%v dropped", sources)
	}
}

func TestFakeCountsWhatWaitsAtClose(t *testing.T) {
	a, b := underlaytest.Pipe(1)
	to := b.Endpoint(false)
	if err := a.SendTo(&to, []byte{1}); err != nil {
		t.Fatal(err)
	}
	b.Close()
	lanes := make([]underlay.SocketDrops, 1)
	if b.SocketDrops(lanes); lanes[0] != (underlay.SocketDrops{Buffers: 1, Datagrams: 1}) {
		t.Errorf("got %v, want 1 dropped", lanes[0])
	}
}

func TestFakeCountsDrops(t *testing.T) {
	a, b := underlaytest.Pipe(2)
	to := b.Endpoint(false)
	const sent = 1500
	for range sent {
		if err := a.SendTo(&to, []byte{1}); err != nil { // arrives at lane 0
			t.Fatal(err)
		}
	}
	rx, received := []underlay.Datagrams{{Buf: make([]byte, 65535)}}, 0
	for b.Lane(0).TryRecv(rx) > 0 {
		received++
	}
	lanes := make([]underlay.SocketDrops, 3)
	lost, none := uint64(sent-received), underlay.SocketDrops{}
	if sources := b.SocketDrops(lanes); lost == 0 || lanes[0] != (underlay.SocketDrops{Buffers: lost, Datagrams: lost}) || lanes[1] != none || lanes[2] != none || sources != none {
		t.Errorf("%d of %d received, %v and %d of the sources dropped", received, sent, lanes, sources)
	}
}
