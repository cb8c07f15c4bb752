// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/test/expect"
)

// gatherRows has a row per branch of gather.
func gatherRows() []spreadRow {
	source, destination := once(EventGather), once(EventToListenPort)
	row := func(name, src, dst, wantSrc, wantDst string, counts map[Event]uint64, change func(*datagram)) spreadRow {
		return spreadRow{name, data(src, dst).with(change).bytes(), skb{}, data(wantSrc, wantDst).with(change).bytes(), counts}
	}
	alone := func(name, src, dst string) spreadRow {
		return spreadRow{name, data(src, dst).bytes(), skb{}, nil, nil}
	}
	as := func(*datagram) {}
	lane4, lane6, ours4 := from(them4, gathers), from(them6, gathers), from(us4, lane)
	rows := []spreadRow{
		row("v4", lane4, us4, them4, us4, source, as),
		row("v4 without a checksum", lane4, us4, them4, us4, source, func(d *datagram) { d.checksum = none }),
		row("v4 whose checksum becomes 0", lane4, us4, them4, us4, source, func(d *datagram) { d.payload = checksumZeroFlow(them4, us4) }),
		row("v4 whose checksum was 0", lane4, us4, them4, us4, source, func(d *datagram) { d.payload = checksumZeroFlow(lane4, us4) }),
		row("v4 with a priority tag and options", lane4, us4, them4, us4, source, func(d *datagram) { d.tags, d.options = []uint16{0x8100}, 3 }),
		row("v6", lane6, us6, them6, us6, source, as),
		row("v6 with two priority tags", lane6, us6, them6, us6, source, func(d *datagram) { d.tags = []uint16{0x88a8, 0x8100} }),
		row("the first of the range", from(them4, 62000), us4, them4, us4, source, as),
		row("the last of the range", from(them4, 62999), us4, them4, us4, source, as),
		row("a handshake to a lane port", them4, ours4, them4, us4, destination, func(d *datagram) { d.payload = message(1, 148) }),
		row("a keepalive to a lane port", them6, from(us6, lane), them6, us6, destination, func(d *datagram) { d.payload = message(4, 32) }),
		row("a lane port to a lane port", lane4, ours4, them4, us4, once(EventGather, EventToListenPort), as),
		row("a v6 lane port to a lane port", lane6, from(us6, 61999), them6, us6, once(EventGather, EventToListenPort), as),
		alone("listen port to listen port", them4, us4),
		alone("before the range", from(them4, 61999), us4), alone("behind the range", from(them4, 63000), us4),
		alone("another address", from("203.0.113.3:1", gathers), us4),
		alone("a peer without a proof to a lane port", "203.0.113.9:40000", ours4),
		alone("its lane port to a lane port", from("203.0.113.9:1", gathers), ours4),
		alone("another address to a lane port", "203.0.113.3:51821", ours4),
		alone("another port to a lane port", from(them4, 51822), ours4),
		alone("v6 of another address", from("[2001:db8:2::3]:1", gathers), us6),
		alone("no tunnel's port", lane4, from(us4, 51819)), alone("behind our lane ports", them4, from(us4, 62000)),
	}
	rows = append(rows, spreadRow{"a VLAN's packet", data(lane4, us4).with(func(d *datagram) { d.tags, d.vlan = []uint16{0x8100}, 7 }).bytes(), skb{}, nil, nil})
	want := firstFragments(data(them4, us4).bytes(), data(them6, us6).bytes())
	for name, in := range firstFragments(data(lane4, us4).bytes(), data(lane6, us6).bytes()) {
		rows = append(rows, spreadRow{name, in, skb{}, want[name], source})
	}
	return append(rows, invalidRows(data(lane4, ours4).bytes(), data(lane6, us6).bytes(), EventIngressMalformed)...)
}

// newGather returns a Spread with an additional peer that has not answered probes.
func newGather(t testing.TB) *Spread {
	t.Helper()
	s := newSpread(t, SpreadOptions{L2: true})
	p := Peer{Tunnel: 51820, Endpoint: netip.MustParseAddrPort("203.0.113.9:40000"), Gather: between(62000, 62999)}
	expect.NoError(t, s.SetPeer(p))
	s.setHeard(t, p, ^uint64(0))
	return s
}

// eachGather runs f with the gather programs for tc and XDP.
func eachGather(t *testing.T, s *Spread, f func(t *testing.T, run func(in []byte, ctx skb) (out []byte, refused bool))) {
	t.Run("tc", func(t *testing.T) {
		f(t, func(in []byte, ctx skb) ([]byte, bool) {
			out, _, refused := runTC(t, s.Ingress(), in, ctx)
			return out, refused
		})
	})
	t.Run("xdp", func(t *testing.T) {
		f(t, func(in []byte, _ skb) ([]byte, bool) { return runXDP(t, s.XDP(), in) })
	})
}

func TestGatherRestoresPorts(t *testing.T) {
	s := newGather(t)
	eachGather(t, s, func(t *testing.T, run func([]byte, skb) ([]byte, bool)) {
		for _, row := range gatherRows() {
			before := counters(t, s)
			out, refused := run(row.in, row.ctx)
			if refused {
				t.Errorf("%s: the kernel rejects the packet", row.name)
				continue
			}
			want := row.in
			if row.want != nil {
				want = row.want
			}
			if !bytes.Equal(out, want) {
				t.Errorf("%s:\n% x\n% x, want\n% x", row.name, row.in, out, want)
			}
			if got := counted(t, s, before); !maps.Equal(got, row.counts) {
				t.Errorf("%s: counted %v, want %v", row.name, got, row.counts)
			}
		}
	})
}

func TestGatherCountsEachTrainDatagram(t *testing.T) {
	s := newGather(t)
	in := data(from(them4, gathers), from(us4, lane)).bytes()
	out, _, _ := runTC(t, s.Ingress(), in, train(7, 96))
	if want := data(them4, us4).bytes(); !bytes.Equal(out, want) {
		t.Errorf("% x, want\n% x", out, want)
	}
	want := map[Event]uint64{EventGather: 7, EventToListenPort: 7}
	if got := counted(t, s, Counters{}); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
	if queues := queueSums(t, s); !slices.Equal(queues, []uint64{7}) {
		t.Errorf("got queues %v, want %v", queues, []uint64{7})
	}
}

func TestQueueCountsCoverTunnelDatagrams(t *testing.T) {
	s := newGather(t)
	eachGather(t, s, func(t *testing.T, run func([]byte, skb) ([]byte, bool)) {
		before := append(queueSums(t, s), 0)[0]
		for _, dst := range []string{us4, from(us4, lane), from(us4, 51819), from(us4, 62000)} {
			run(data("192.0.2.99:1", dst).bytes(), skb{})
		}
		run(data(us4, them4).bytes(), skb{})
		if n := queueSums(t, s)[0] - before; n != 2 {
			t.Errorf("got %d datagrams counted, want 2", n)
		}
	})
}

// queueSums returns the queue counters, summed over CPUs.
func queueSums(t testing.TB, s *Spread) (sums []uint64) {
	t.Helper()
	queues, err := s.QueueCounts()
	expect.NoError(t, err)
	for _, cpus := range queues {
		sum := uint64(0)
		for _, n := range cpus {
			sum += n
		}
		sums = append(sums, sum)
	}
	return sums
}

// The ports of a truncated packet may change if its UDP header is complete: the kernel drops the packet. Nothing else may
// change.
func TestGatherChangesOnlyPortsOfTruncatedPackets(t *testing.T) {
	s := newGather(t)
	eachGather(t, s, func(t *testing.T, run func([]byte, skb) ([]byte, bool)) {
		runs := forEachTruncation(func(in []byte) bool {
			out, refused := run(in, skb{})
			if refused {
				return true
			}
			changed := 0
			for i := range in {
				if len(out) != len(in) || out[i] != in[i] {
					changed++
				}
			}
			if changed > 6 {
				t.Errorf("% x became\n% x", in, out)
			}
			return false
		})
		if runs < 400 {
			t.Errorf("%d runs", runs)
		}
	})
}
