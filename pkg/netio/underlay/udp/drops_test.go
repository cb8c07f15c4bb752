// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestDropCounterContinuesAfterKernelReset(t *testing.T) {
	var o dropCounter
	for _, step := range []struct {
		read uint32
		want uint64
	}{{0, 0}, {5, 5}, {5, 5}, {0xffffffff, 0xffffffff}, {0, 1 << 32}, {7, 1<<32 + 7}, {6, 1<<33 + 6}} {
		if o.advance(step.read, receiveCount{}); o.total != (underlay.SocketDrops{Buffers: step.want, Datagrams: step.want}) {
			t.Errorf("%d read: got %d, want %d of each", step.read, o.total, step.want)
		}
	}
}

func TestDroppedBuffersAreScaledByTrainsReceived(t *testing.T) {
	var c dropCounter
	for _, step := range []struct {
		about              string
		read               uint32
		elements, messages uint64
		want               uint64
	}{
		{"before anything was received", 5, 0, 0, 5},
		{"while trains of 40 are received", 7, 100, 4000, 5 + 2*40},
		{"without a drop", 7, 200, 4100, 85},
		{"while single messages are received", 10, 300, 4200, 88},
		{"while two of three elements are pairs, rounded", 11, 303, 4205, 90},
		{"while nothing is received: the mean of all, 13.88", 21, 303, 4205, 90 + 139},
		{"after the kernel's counter has wrapped", 20, 304, 4207, 229 + 2*0xffffffff},
	} {
		if c.advance(step.read, receiveCount{step.elements, step.messages}); c.total.Datagrams != step.want {
			t.Errorf("%s: estimated %d datagrams, want %d", step.about, c.total.Datagrams, step.want)
		}
	}
	if want := uint64(21 + 0xffffffff); c.total.Buffers != want {
		t.Errorf("%d buffers, want %d", c.total.Buffers, want)
	}
}

// TestReceivedTrainsAreCountedByMessage receives a train, and a single datagram.
func TestReceivedTrainsAreCountedByMessage(t *testing.T) {
	enterNamespace(t)
	from, at := open(t, Config{}), open(t, Config{})
	if !from.Features().GSO || !at.Features().GRO {
		t.Skip("needs UDP_SEGMENT and UDP_GRO")
	}
	to := loopback(at, false)
	train := underlay.Run{To: &to, Parts: [][]byte{make([]byte, 95)}, SegSize: 10, Segments: 10}
	if err := errors.Join(from.SendRun(&train), from.SendTo(&to, make([]byte, 10))); err != nil {
		t.Fatal(err)
	}
	rx, n := []underlay.Datagrams{{Buf: make([]byte, 65535)}}, 0
	expect.Eventually(t, "both are received", func() bool { n += at.Lane(0).TryRecv(rx); return n == 2 })
	if got := at.received(0); got != (receiveCount{elements: 2, messages: 11}) {
		t.Errorf("counted %+v, want 11 messages in 2 elements", got)
	}
}

func drops(n uint64) underlay.SocketDrops { return underlay.SocketDrops{Buffers: n, Datagrams: 3 * n} }

func TestLaneAndSourceDropsAreSeparate(t *testing.T) {
	o := dropCounters{counters: []dropCounter{{total: drops(1)}, {total: drops(2)}, {total: drops(4)}, {total: drops(8)}}}
	for _, lanes := range [][]underlay.SocketDrops{nil, {drops(9)}, {drops(9), drops(9)}, {drops(9), drops(9), drops(9)}} {
		others := o.sum(2, lanes)
		for i, n := range lanes {
			if want := drops([]uint64{1, 2, 0}[i]); n != want {
				t.Errorf("lane %d of %d: got %d, want %d", i, len(lanes), n, want)
			}
		}
		if others != drops(12) {
			t.Errorf("got %d drops at the sources, want %d", others, drops(12))
		}
	}
}

// flood sends single datagrams to a port without a reader.
func flood(t *testing.T, from *Port, to underlay.Endpoint, datagrams int) {
	t.Helper()
	for range datagrams {
		if err := from.SendTo(&to, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
}

// received reads from a lane until the given number of datagrams has been received or dropped.
func received(t *testing.T, p *Port, sent uint64) (read, dropped uint64) {
	t.Helper()
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	expect.Eventually(t, "all datagrams are received or dropped", func() bool {
		for n := -1; n != 0; read += uint64(n) {
			n = p.Lane(0).TryRecv(rx)
		}
		lanes := make([]underlay.SocketDrops, 1)
		p.SocketDrops(lanes)
		dropped = lanes[0].Datagrams
		return read+dropped >= sent
	})
	return read, dropped
}

func TestSocketOverflowIsCounted(t *testing.T) {
	enterNamespace(t)
	const sent = 200
	from, at := open(t, Config{}), open(t, Config{ReceiveBuffer: 16 << 10, NoGRO: true})
	flood(t, from, loopback(at, false), sent)
	read, dropped := received(t, at, sent)
	if read+dropped != sent || read == 0 || dropped == 0 {
		t.Errorf("%d received and %d dropped of %d", read, dropped, sent)
	}
	source, err := at.OpenSource(61000)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.SetsockoptInt(at.sources.Handle(source), unix.SOL_SOCKET, unix.SO_RCVBUF, 0); err != nil {
		t.Fatal(err)
	}
	secondary := loopback(at, false)
	secondary.Dst = netip.AddrPortFrom(secondary.Dst.Addr(), 61000)
	flood(t, from, secondary, sent)
	lanes := make([]underlay.SocketDrops, 2)
	expect.Eventually(t, "a source drops", func() bool { return at.SocketDrops(lanes).Buffers > 0 })
	if err := at.Close(); err != nil {
		t.Fatal(err)
	}
	if sources := at.SocketDrops(lanes); sources.Buffers == 0 || lanes[0].Datagrams != dropped || lanes[1].Buffers != 0 {
		t.Errorf("after Close: got %d drops at the sources and %v at the lane, want more than 0 and %d", sources, lanes, dropped)
	}
}

// TestDropCountsMoveWithKeptSockets passes sockets to another port. That port counts all drops of its sockets, and the
// former port none.
func TestDropCountsMoveWithKeptSockets(t *testing.T) {
	enterNamespace(t)
	const sent = 200
	from, at := open(t, Config{}), open(t, Config{ReceiveBuffer: 16 << 10, NoGRO: true})
	flood(t, from, loopback(at, false), sent)
	_, dropped := received(t, at, sent)
	kept, err := at.Keep()
	if err != nil {
		t.Fatal(err)
	}
	lanes := make([]underlay.SocketDrops, 1)
	if at.SocketDrops(lanes); lanes[0].Buffers != dropped {
		t.Errorf("got %d drops while the sockets are kept, want %d", lanes[0], dropped)
	}
	if err := at.Close(); err != nil {
		t.Fatal(err)
	}
	if at.SocketDrops(lanes); lanes[0].Buffers != 0 {
		t.Errorf("got %d drops at the former port, want 0", lanes[0])
	}
	heir := open(t, Config{Sockets: kept, NoGRO: true})
	if heir.SocketDrops(lanes); lanes[0].Buffers != dropped || lanes[0].Datagrams != dropped {
		t.Errorf("the next port counts %d drops, want %d of each", lanes[0], dropped)
	}
}

// TestEstimateSurvivesHandover: the former port keeps what its estimate exceeds the kernel's count by.
func TestEstimateSurvivesHandover(t *testing.T) {
	c := dropCounters{counters: []dropCounter{{total: underlay.SocketDrops{Buffers: 10, Datagrams: 300}}}}
	c.handOver()
	lanes := make([]underlay.SocketDrops, 1)
	if c.sum(1, lanes); lanes[0] != (underlay.SocketDrops{Datagrams: 290}) {
		t.Errorf("got %+v, want 290 datagrams", lanes[0])
	}
}

// TestRefusedFilterIsLoggedOnce: a locked socket (SO_LOCK_FILTER) accepts no filter, as under a strict seccomp profile.
func TestRefusedFilterIsLoggedOnce(t *testing.T) {
	enterNamespace(t)
	first, err := Open(Config{Lanes: 2})
	if err != nil {
		t.Fatal(err)
	}
	if !first.Features().GRO {
		t.Skip("without UDP_GRO there is no filter (Linux before 5.12)")
	}
	if !first.Features().Filter {
		t.Error("Features.Filter is false")
	}
	for _, l := range first.lanes {
		if err := unix.SetsockoptInt(l.fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := first.Keep()
	if err = errors.Join(err, first.Close()); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	p := open(t, Config{Lanes: 2, Sockets: kept, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if p.Features().Filter {
		t.Error("Features.Filter is true, although the filter was refused")
	}
	if n := strings.Count(log.String(), "SO_ATTACH_FILTER"); n != 1 {
		t.Errorf("logged %d times: %s", n, log.String())
	}
	if f := open(t, Config{NoGRO: true}).Features(); f.Filter {
		t.Error("Features.Filter is true without UDP_GRO")
	}
}
