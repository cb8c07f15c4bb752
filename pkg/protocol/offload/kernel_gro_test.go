// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// These tests give the same packets to Linux's GRO and to a Merger, and compare the trains of each flow. GRO keeps packets back until
// none has come for a while (gro_flush_timeout). Then the kernel forwards the trains to a TUN with offloads. The differences are intended,
// and such packets are left out (comparable):
//
//   - A packet that GRO does not merge (a fragment, IPv4 options, an empty or damaged datagram, another protocol) overtakes the packets that GRO
//     keeps back. A Merger keeps the order between two hosts, so it ends their trains.
//   - GRO merges packets with IPv6 extension headers. A Merger does not: no sender of bulk data uses them.
//   - GRO merges no datagrams without a checksum. A Merger does, since VXLAN sends them, and adds checksums.
//   - GRO merges any number of TCP packets up to 64 KiB. A Merger has the limit of UDP for both.
//   - Since Linux knows AccECN, its GRO merges no packets whose CWR bits differ. A Merger lets packets without CWR follow one with it, as
//     earlier kernels and GSO do.
//   - GRO takes packets of one 5-tuple that differ in the IPv6 flow label for different flows, and reorders them. A Merger keeps their order.
//   - Packets with one IPv4 ID and without DF are merged by GRO since Linux 6.18, which keeps the ID when it segments them. A Merger would
//     lose it, and a router that fragments such packets needs it.
//   - Packets with one IPv4 ID and with DF are merged by both, but virtio has no word for them: the kernel splits such a TCP train
//     again for a TUN, and the IDs of a Merger's train count up.

// groHold is the time, in nanoseconds, for which GRO keeps packets back.
const groHold = 2_000_000

// newCoalescer returns a router that passes packets through GRO, TCP and UDP, to a TUN with offloads.
func newCoalescer(t testing.TB) router {
	t.Helper()
	enterRouter(t)
	r := router{
		in:  openTUN(t, "gro", unix.IFF_NAPI, allFeatures, "10.9.0.254/24", "fd00::fe/120"),
		out: openTUN(t, "out", 0, allFeatures, "10.9.1.254/24", "fd00::1fe/120"),

		counters: openCounters(t),
	}
	if err := hostnet.SetFeature("gro", "rx-udp-gro-forwarding", true); err != nil {
		t.Skipf("needs GRO of forwarded UDP (Linux 5.12): %v", err)
	}
	setMTU(t, "gro", packet.MaxLen)
	setMTU(t, "out", packet.MaxLen)
	if err := writeSysfs("class/net/gro/gro_flush_timeout", strconv.Itoa(groHold)); err != nil {
		t.Skipf("needs sysfs of a network namespace: %v", err)
	}
	return r
}

// writeSysfs writes a file of the sysfs of this thread's network namespace.
func writeSysfs(file, value string) error {
	sysfs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("opening sysfs: %w", err)
	}
	defer unix.Close(sysfs)
	if err := unix.FsconfigCreate(sysfs); err != nil {
		return fmt.Errorf("configuring sysfs: %w", err)
	}
	mount, err := unix.Fsmount(sysfs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("mounting sysfs: %w", err)
	}
	defer unix.Close(mount)
	fd, err := unix.Openat(mount, file, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("opening %s: %w", file, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("writing %s: %w", file, err)
	}
	return nil
}

// grouped are the trains of each flow. A train is written as its header and its bytes, a single packet as its bytes.
type grouped map[string][]string

func (g grouped) add(h VnetHdr, p []byte) {
	key := flowKey(p)
	if h.GSOType == GSONone {
		if !validChecksums(p) {
			key += " damaged" // GRO does not keep it back, so its place among the others differs
		}
		// Completing a partial checksum, unlike segmentation, writes 0 as 0xffff, which is equal in ones' complement.
		if l := layoutOf(p); l.kind != opaque && !l.kind.udp() && packet.TCPHeader(p[l.l4:]).Checksum() == 0xffff {
			packet.TCPHeader(p[l.l4:]).SetChecksum(0)
		}
		g[key] = append(g[key], string(p))
		return
	}
	h.HdrLen = 0 // a hint
	g[key] = append(g[key], fmt.Sprintf("%+v %s", h, p))
}

// merged returns the trains of a Merger, as a router forwards them.
func merged(t *testing.T, pkts [][]byte) grouped {
	t.Helper()
	m, g, out := NewMerger(true), grouped{}, trainSink{}
	for _, p := range pkts {
		m.Add(p)
	}
	trains := slices.Clone(m.trains)
	if failed, err := m.Flush(&out); failed != 0 || err != nil {
		t.Fatalf("%d packets failed: %v", failed, err)
	}
	for i, e := range trains {
		h, p := out.at(i)
		p = forwarded(p)
		if e.kind != tcp4 || !e.fixedID {
			g.add(h, p)
			continue
		}
		for _, p := range oracleSplit(h, p) {
			g.add(VnetHdr{}, withID(p, packet.IPv4(e.pkt).ID()))
		}
	}
	return g
}

func withID(p []byte, id uint16) []byte {
	be.PutUint16(p[4:], id)
	be.PutUint16(p[10:], 0)
	be.PutUint16(p[10:], ^slowSum(p[:packet.IPv4HeaderLen]))
	return p
}

// coalesce returns the trains that GRO makes of the packets, and their number of packets. It is less if the kernel drops some.
func (r router) coalesce(t *testing.T, pkts [][]byte) (g grouped, n int) {
	t.Helper()
	g = grouped{}
	dropped := r.counters.drops(t)
	for i, p := range pkts {
		if err := r.WriteTrain([][]byte{make([]byte, VnetHdrLen), p}); err != nil {
			t.Fatalf("packet %d is rejected: %v", i, err)
		}
	}
	for n < len(pkts) {
		h, p, err := r.waitTrain(t, dropped)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return g, n
		case err != nil:
			t.Fatal(err)
		case p == nil:
		case h.GSOType == GSONone: // its checksum may be partial
			g.add(VnetHdr{}, splitAll(t, h, p, 1)[0])
			n++
		default:
			g.add(h, p)
			n += len(oracleSplit(h, p))
		}
	}
	return g, n
}

// wantSameTrains checks that GRO and a Merger make the same trains. GRO also ends trains when a tick of the kernel's clock or groHold passes
// while the packets are written, so it has many tries.
func wantSameTrains(t *testing.T, r router, pkts [][]byte) {
	t.Helper()
	want := merged(t, pkts)
	const tries = 100
	sends := 1
	for i := 1; ; i++ {
		dropped := r.counters.drops(t)
		got, n := r.coalesce(t, pkts)
		if n < len(pkts) {
			if sends++; sends > maxSends || r.counters.drops(t) == dropped {
				t.Fatalf("got %d of %d packets, the kernel counts\n%s", n, len(pkts), r.counters)
			}
			continue
		}
		if maps.EqualFunc(got, want, slices.Equal[[]string]) {
			return
		}
		if i < tries {
			continue
		}
		for key := range want {
			if !slices.Equal(got[key], want[key]) {
				t.Fatalf("flow %x: in the last of %d tries GRO made\n%x\na Merger makes\n%x", key, tries, got[key], want[key])
			}
		}
		t.Fatalf("GRO made trains of %d flows, a Merger of %d", len(got), len(want))
	}
}

// comparable leaves out the packets about which GRO and a Merger intentionally differ. Of a flow it takes no packet behind a damaged one, and not
// more packets than a Merger puts into a train.
func comparable(pkts [][]byte) (out [][]byte) {
	count, last := map[string]int{}, map[string][]byte{}
	for _, p := range pkts {
		l, key := layoutOf(p), flowKey(p)
		if l.kind == opaque || differs(l, p) || count[key] == MaxSegments || !routable(p) || sameID(l, p, last[key]) {
			continue
		}
		if l.kind.v6() && last[key] != nil && flowLabel(last[key]) != flowLabel(p) {
			continue // another flow for GRO
		}
		last[key] = p
		out = append(out, p)
		count[key]++
		if !validChecksums(p) {
			count[key] = MaxSegments
		}
	}
	return out
}

// differs reports whether GRO and a Merger intentionally differ about a packet.
func differs(l layout, p []byte) bool {
	if l.kind.udp() {
		return len(p) == int(l.hdrLen) || packet.UDPHeader(p[l.l4:]).Checksum() == 0
	}
	return packet.TCPHeader(p[l.l4:]).Flags()&packet.CWR != 0
}

// sameID reports whether an IPv4 packet without DF has the ID of the last one of its flow.
func sameID(l layout, p, last []byte) bool {
	return !l.kind.v6() && last != nil && !packet.IPv4(p).DontFragment() && packet.IPv4(p).ID() == packet.IPv4(last).ID()
}

// flowLabel returns the flow label of an IPv6 packet.
func flowLabel(p []byte) string { return string([]byte{p[1] & 0xf, p[2], p[3]}) }

// routable reports whether a router forwards the packet from the first TUN to the second one.
func routable(p []byte) bool {
	if packet.VersionOf(p) == packet.Version6 {
		want := spec{v6: true, src: 1, dst: 1}.packet()
		return p[7] > 1 && bytes.Equal(p[8:40], want[8:40])
	}
	want := spec{src: 1, dst: 1}.packet()
	return p[8] > 1 && packet.IPv4(p).ChecksumOK() && bytes.Equal(p[12:20], want[12:20])
}

func TestKernelMergesPacketsIntoSameTrains(t *testing.T) {
	r := newCoalescer(t)
	for _, s := range []spec{{}, {v6: true}, {udp: true}, {v6: true, udp: true}} {
		s.src, s.dst = 1, 1
		for name, f := range mergeTwists {
			pkts := slices.Concat(s.run(3, 100), s.with(func(s *spec) { s.seq, s.id = 300, 3; f(s) }).run(3, 100))
			t.Run(fmt.Sprintf("%s, IPv6 %v, UDP %v", name, s.v6, s.udp), func(t *testing.T) { wantSameTrains(t, r, comparable(pkts)) })
		}
	}
}

// mergeTwists change the second half of a flow.
var mergeTwists = map[string]func(*spec){
	"nothing":         func(*spec) {},
	"other flow":      func(s *spec) { s.port = 9 },
	"TOS":             func(s *spec) { s.tos = 3 },
	"TTL":             func(s *spec) { s.ttl = 1 },
	"DF":              func(s *spec) { s.df = true },
	"ID":              func(s *spec) { s.id = 9 },
	"gap":             func(s *spec) { s.seq++ },
	"acknowledgment":  func(s *spec) { s.ack++ },
	"window":          func(s *spec) { s.window++ },
	"options":         func(s *spec) { s.options = []byte{1, 1, 1, 1} },
	"PSH":             func(s *spec) { s.flags = packet.ACK | packet.PSH },
	"FIN":             func(s *spec) { s.flags = packet.ACK | packet.FIN },
	"ECE":             func(s *spec) { s.flags = packet.ACK | packet.ECE },
	"urgent":          func(s *spec) { s.flags = packet.ACK | packet.URG },
	"synchronisation": func(s *spec) { s.flags = packet.SYN },
}

func FuzzMergeMatchesKernel(f *testing.F) {
	r := newCoalescer(f)
	f.Add(bytes.Repeat([]byte{0, 0, 0}, 70))
	f.Add(bytes.Repeat([]byte{0x80, 0, 0, 0x81, 0, 0, 0x82, 0, 0, 0x83, 0, 0}, 15))
	for twist := range byte(15) {
		f.Add(bytes.Repeat([]byte{0x80, 0, 0, 0x80, twist, 0, 0x82, 0, 0x90, 0x82, twist, 0x90, 0x81, twist, 1}, 4))
	}
	f.Add([]byte{0x80, 0, 0, 0x80, 30, 50, 0x82, 0, 0, 0x82, 30, 40, 0x81, 0, 0, 0x81, 0, 0, 0x81, 30, 70})
	f.Fuzz(func(t *testing.T, b []byte) { wantSameTrains(t, r, comparable(script(b))) })
}
