// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

func TestMergeUndoesSplit(t *testing.T) {
	for _, tt := range trains {
		if len(tt.spec.ipOpts) > 0 || tt.len <= tt.size || tt.len/tt.size > MaxSegments {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			s := tt.spec
			s.payload = pattern(tt.len, 3)
			h, p := s.superPacket(tt.size)
			out := merge(t, true, splitAll(t, h, p, 64)...)
			if len(out.all) != 1 {
				t.Fatalf("trains of %v packets, want one", out.counts())
			}
			tr, _ := packet.FindTransport(p)
			h.HdrLen = uint16(tr.Offset + 8)
			if !s.udp {
				h.HdrLen = uint16(tr.Offset + 20 + len(s.options))
			}
			gotHdr, got := out.at(0)
			if gotHdr != h {
				t.Errorf("header %+v, want %+v", gotHdr, h)
			}
			diff(t, [][]byte{got}, [][]byte{p})
		})
	}
}

// sequence is two packets, the second the first's successor changed by f.
func sequence(s spec, f func(*spec)) [][]byte {
	s.payload = pattern(100, 1)
	next := s
	next.seq, next.id = s.seq+100, s.id+1
	f(&next)
	return [][]byte{s.packet(), next.packet()}
}

func TestTCPMergeRules(t *testing.T) {
	both := spec{seq: 50, id: 9, options: bytes.Repeat([]byte{1}, 12)}
	for _, tt := range []struct {
		name   string
		merges bool
		f      func(*spec)
	}{
		{"successor", true, func(*spec) {}},
		{"shorter", true, func(s *spec) { s.payload = s.payload[:1] }},
		{"PSH", true, func(s *spec) { s.flags = packet.ACK | packet.PSH }},
		{"FIN", true, func(s *spec) { s.flags = packet.ACK | packet.FIN }},
		{"longer", false, func(s *spec) { s.payload = pattern(101, 1) }},
		{"no payload", false, func(s *spec) { s.payload = nil }},
		{"gap", false, func(s *spec) { s.seq++ }},
		{"overlap", false, func(s *spec) { s.seq-- }},
		{"acknowledgment", false, func(s *spec) { s.ack++ }},
		{"window", false, func(s *spec) { s.window++ }},
		{"urgent pointer", false, func(s *spec) { s.urgent++ }},
		{"SYN", false, func(s *spec) { s.flags = packet.ACK | packet.SYN }},
		{"RST", false, func(s *spec) { s.flags = packet.ACK | packet.RST }},
		{"URG", false, func(s *spec) { s.flags = packet.ACK | packet.URG }},
		{"ECE", false, func(s *spec) { s.flags = packet.ACK | packet.ECE }},
		{"CWR", false, func(s *spec) { s.flags = packet.ACK | packet.CWR }},
		{"other options", false, func(s *spec) { s.options = bytes.Repeat([]byte{2}, 12) }},
		{"fewer options", false, func(s *spec) { s.options = s.options[:8] }},
		{"CE mark", false, func(s *spec) { s.tos = 3 }},
		{"TTL", false, func(s *spec) { s.ttl = 1 }},
		{"source", false, func(s *spec) { s.src = 1 }},
		{"destination", false, func(s *spec) { s.dst = 1 }},
		{"port", false, func(s *spec) { s.port = 1 }},
	} {
		for _, v6 := range []bool{false, true} {
			s := both
			s.v6 = v6
			pkts := sequence(s, tt.f)
			out := merge(t, false, pkts...)
			if got := len(out.all) == 1; got != tt.merges {
				t.Errorf("%s, IPv6 %v: merged %v, want %v", tt.name, v6, got, tt.merges)
			}
			diff(t, unmerge(out), pkts)
		}
	}
}

func TestIPv4MergeRules(t *testing.T) {
	for _, tt := range []struct {
		name string
		df   bool
		ids  []uint16
		want []int
	}{
		{"counting up", false, []uint16{5, 6, 7}, []int{3}},
		{"wrapping", false, []uint16{0xfffe, 0xffff, 0, 1}, []int{4}},
		{"fixed with DF", true, []uint16{5, 5, 5}, []int{3}},
		{"counting up with DF", true, []uint16{5, 6, 7}, []int{3}},
		{"fixed without DF", false, []uint16{5, 5, 5}, []int{1, 1, 1}},
		{"fixed, then counting up", true, []uint16{5, 5, 6, 7}, []int{2, 2}},
		{"counting up, then fixed", true, []uint16{5, 6, 6}, []int{2, 1}},
		{"gap", true, []uint16{5, 7}, []int{1, 1}},
	} {
		var pkts [][]byte
		for i, id := range tt.ids {
			pkts = append(pkts, spec{df: tt.df, id: id, seq: uint32(10 * i), payload: pattern(10, i)}.packet())
		}
		if got := merge(t, false, pkts...).counts(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	for name, f := range map[string]func(*spec){
		"DF differs":        func(s *spec) { s.df = true },
		"reserved bit":      func(s *spec) { s.frag = 0x8000 },
		"fragment":          func(s *spec) { s.frag = 0x2000 },
		"options":           func(s *spec) { s.ipOpts = []byte{1, 1, 1, 1} },
		"options on both":   nil,
		"fragments on both": nil,
	} {
		base := spec{}
		switch name {
		case "options on both":
			base.ipOpts, f = []byte{1, 1, 1, 1}, func(*spec) {}
		case "fragments on both":
			base.frag, f = 0x2000, func(*spec) {}
		}
		pkts := sequence(base, f)
		if out := merge(t, false, pkts...); len(out.all) != 2 || !slices.Equal(out.bufferCounts, []int{2, 2}) {
			t.Errorf("%s: merged", name)
		}
	}
}

func TestIPv6MergeRules(t *testing.T) {
	label := sequence(spec{v6: true}, func(*spec) {})
	label[1][3] = 7
	if len(merge(t, false, label...).all) != 2 {
		t.Error("different flow labels were merged")
	}
	ext := spec{v6: true, ipOpts: []byte{0, 0, 1, 4, 0, 0, 0, 0}}
	if len(merge(t, false, sequence(ext, func(*spec) {})...).all) != 2 {
		t.Error("packets with extension headers were merged")
	}
}

func TestUDPMergeRules(t *testing.T) {
	for _, tt := range []struct {
		name   string
		merges bool
		v6     bool
		f      func(*spec)
	}{
		{"successor", true, false, func(*spec) {}},
		{"shorter", true, false, func(s *spec) { s.payload = s.payload[:99] }},
		{"longer", false, false, func(s *spec) { s.payload = pattern(101, 1) }},
		{"empty", false, false, func(s *spec) { s.payload = nil }},
		{"zero checksum", false, false, func(s *spec) { s.zero = true }},
		{"port", false, false, func(s *spec) { s.port = 1 }},
		{"TOS", false, false, func(s *spec) { s.tos = 3 }},
		{"successor", true, true, func(*spec) {}},
		{"zero checksum", false, true, func(s *spec) { s.zero = true }},
	} {
		s := spec{udp: true, v6: tt.v6}
		pkts := sequence(s, tt.f)
		out := merge(t, true, pkts...)
		if got := len(out.all) == 1; got != tt.merges {
			t.Errorf("%s, IPv6 %v: merged %v, want %v", tt.name, tt.v6, got, tt.merges)
		}
		diff(t, unmerge(out), pkts)
		if len(merge(t, false, pkts...).all) != 2 {
			t.Errorf("%s: merged without USO", tt.name)
		}
	}
}

func TestMergedDatagramsWithoutChecksumGetOne(t *testing.T) {
	s := spec{udp: true, zero: true}
	out := merge(t, true, s.run(5, 1200)...)
	if got := out.counts(); !slices.Equal(got, []int{5}) {
		t.Fatalf("trains of %v packets, want one", got)
	}
	s.zero = false
	diff(t, unmerge(out), s.run(5, 1200))
	s.zero, s.v6 = true, true
	if got := merge(t, true, s.run(5, 1200)...); len(got.all) != 5 {
		t.Errorf("IPv6 datagrams without a checksum were merged: %v", got.counts())
	}
}

func TestShorterPacketAndPushEndTrain(t *testing.T) {
	a := spec{seq: 1}.run(3, 100)
	b := spec{seq: 301, id: 3}.run(2, 50)
	c := spec{seq: 401, id: 5}.run(2, 50)
	if got := merge(t, false, slices.Concat(a, b, c)...).counts(); !slices.Equal(got, []int{4, 3}) {
		t.Errorf("got %v, want 4 (the last one shorter), then 3", got)
	}
	push := spec{seq: 301, id: 3, flags: packet.ACK | packet.PSH}.run(1, 100)
	next := spec{seq: 401, id: 4}.run(2, 100)
	if got := merge(t, false, slices.Concat(a, push, next)...).counts(); !slices.Equal(got, []int{4, 2}) {
		t.Errorf("got %v, want 4 (the last with PSH), then 2", got)
	}
	if got := merge(t, false, slices.Concat(push, next)...).counts(); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("got %v, want a PSH alone, then 2", got)
	}
}

func TestCWRStartsTrainWithGSOECN(t *testing.T) {
	first := spec{flags: packet.ACK | packet.CWR}.run(1, 100)
	rest := spec{seq: 100, id: 1}.run(2, 100)
	out := merge(t, false, slices.Concat(first, rest)...)
	h, _ := out.at(0)
	if len(out.all) != 1 || h.GSOType != GSOTCPv4|GSOECN {
		t.Errorf("%v, type %#x", out.counts(), h.GSOType)
	}
	diff(t, unmerge(out), slices.Concat(first, rest))
}

func TestMergedTrainsStayWithinLimits(t *testing.T) {
	for _, tt := range []struct {
		name string
		n    int
		size int
		want []int
	}{
		{"bytes", 50, 1400, []int{46, 4}},
		{"packets", 150, 10, []int{64, 64, 22}},
		{"two large ones", 2, 32000, []int{2}},
		{"two too large ones", 2, 33000, []int{1, 1}},
	} {
		for _, s := range []spec{{}, {v6: true}, {udp: true}} {
			if got := merge(t, true, s.run(tt.n, tt.size)...).counts(); !slices.Equal(got, tt.want) {
				t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
			}
		}
	}
}

func TestWrongChecksumsStaySingleAndUnverified(t *testing.T) {
	for _, s := range []spec{{}, {v6: true}, {udp: true}, {udp: true, v6: true}} {
		for bad := range 4 {
			pkts := s.run(4, 100)
			pkts[bad][len(pkts[bad])-1] ^= 1
			out := merge(t, true, pkts...)
			want := [][]int{{1, 3}, {1, 1, 2}, {2, 1, 1}, {3, 1}}[bad]
			if got := out.counts(); !slices.Equal(got, want) {
				t.Errorf("packet %d bad: got %v, want %v", bad, got, want)
			}
			diff(t, unmerge(out), pkts)
			for i := range out.all {
				if h, p := out.at(i); h.GSOType == GSONone && h.Flags&FlagDataValid != 0 && !validChecksums(p) {
					t.Errorf("packet %d bad: train %d is marked DATA_VALID", bad, i)
				}
			}
		}
	}
	pkts := spec{}.run(2, 100)
	pkts[1][10] ^= 1 // the IPv4 header's checksum
	if len(merge(t, false, pkts...).all) != 2 {
		t.Error("a packet with a wrong IPv4 header checksum was merged")
	}
}

func TestSinglePacketIsNeitherChangedNorSummed(t *testing.T) {
	p := spec{payload: pattern(100, 1)}.packet()
	out := merge(t, false, p)
	if h, got := out.at(0); h != (VnetHdr{}) || !bytes.Equal(got, p) {
		t.Errorf("got %+v, want %+v", h, (VnetHdr{}))
	}
	// The first was verified for the sake of the second, which turned out bad.
	pkts := spec{}.run(2, 100)
	pkts[1][50] ^= 1
	out = merge(t, false, pkts...)
	first, _ := out.at(0)
	second, _ := out.at(1)
	if first != (VnetHdr{Flags: FlagDataValid}) || second != (VnetHdr{}) {
		t.Errorf("got %+v, %+v, want %+v, %+v", first, second, (VnetHdr{Flags: FlagDataValid}), (VnetHdr{}))
	}
}

func TestInvalidLengthsPassUnchanged(t *testing.T) {
	for name, f := range map[string]func([]byte){
		"IPv4 total length": func(p []byte) { p[3]-- },
		"TCP data offset":   func(p []byte) { p[32] = 0xf0 },
		"small data offset": func(p []byte) { p[32] = 0x40 },
		"version":           func(p []byte) { p[0] = 0x95 },
	} {
		pkts := spec{}.run(2, 10)
		f(pkts[0])
		f(pkts[1])
		out := merge(t, true, pkts...)
		if len(out.all) != 2 {
			t.Errorf("%s: merged", name)
			continue
		}
		diff(t, unmerge(out), pkts)
	}
	udp := spec{udp: true}.run(2, 10)
	udp[0][25]--
	udp[1][25]--
	if len(merge(t, true, udp...).all) != 2 {
		t.Error("UDP length: merged")
	}
	short := [][]byte{{}, {0x45}, {0x60, 0}, make([]byte, 19), spec{}.packet()[:27], spec{v6: true}.packet()[:41]}
	diff(t, unmerge(merge(t, true, short...)), short)
}

func TestFragmentKeepsOrderBetweenItsHosts(t *testing.T) {
	flow := spec{udp: true}.run(4, 100)
	for name, tt := range map[string]struct {
		p    []byte
		want []int
	}{
		"fragment":              {spec{udp: true, frag: 1}.packet(), []int{2, 1, 2}},
		"with options":          {spec{udp: true, ipOpts: []byte{1, 1, 1, 1}}.packet(), []int{2, 1, 2}},
		"not even an IP packet": {[]byte{0}, []int{2, 1, 2}},
		"of another host":       {spec{udp: true, frag: 1, src: 1}.packet(), []int{4, 1}},
		"of IPv6":               {spec{udp: true, v6: true, ipOpts: make([]byte, 8)}.packet(), []int{4, 1}},
	} {
		pkts := slices.Insert(slices.Clone(flow), 2, tt.p)
		if got := merge(t, true, pkts...).counts(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}

func TestInterleavedFlowsMergeSeparately(t *testing.T) {
	const flows, n = 16, 8
	var pkts [][]byte
	runs := make([][][]byte, flows)
	for f := range flows {
		runs[f] = spec{port: uint16(f), v6: f%2 == 0, udp: f%4 < 2}.run(n, 50)
	}
	for i := range n {
		for f := range flows {
			pkts = append(pkts, runs[f][i])
		}
	}
	out := merge(t, true, pkts...)
	if len(out.all) != flows {
		t.Errorf("trains of %v packets, want %d of %d", out.counts(), flows, n)
	}
	sameFlows(t, unmerge(out), pkts)
}

func TestFlowTableOverflowKeepsOrder(t *testing.T) {
	const flows, n = 300, 4
	var pkts [][]byte
	for i := range n {
		for f := range flows {
			s := spec{port: uint16(f), seq: uint32(10 * i), id: uint16(i), payload: pattern(10, f)}
			pkts = append(pkts, s.packet())
		}
	}
	sameFlows(t, unmerge(merge(t, true, pkts...)), pkts)
}

func TestFlushContinuesAfterRejectedTrain(t *testing.T) {
	m := NewMerger(false)
	for _, p := range slices.Concat(spec{port: 1}.run(3, 10), spec{port: 2}.run(2, 10)) {
		m.Add(p)
	}
	sink := trainSink{err: errors.New("rejected")}
	if failed, err := m.Flush(&sink); failed != 5 || !errors.Is(err, sink.err) || len(sink.all) != 2 {
		t.Errorf("%d packets failed (%v), %d trains written", failed, err, len(sink.all))
	}
	if failed, err := m.Flush(&sink); failed != 0 || err != nil || len(sink.all) != 2 {
		t.Error("the rejected trains were kept")
	}
}

func TestMergerIsEmptyAfterFlush(t *testing.T) {
	m := NewMerger(false)
	pkts := spec{}.run(4, 10)
	for i := range 2 {
		var out trainSink
		m.Add(pkts[2*i])
		m.Add(pkts[2*i+1])
		if _, err := m.Flush(&out); err != nil || !slices.Equal(out.counts(), []int{2}) {
			t.Fatalf("got %v, error %v, want %v, no error", out.counts(), err, []int{2})
		}
	}
}

// unmerge splits trains back into packets with the oracle.
func unmerge(e *trainSink) [][]byte {
	var out [][]byte
	for i := range e.all {
		h, p := e.at(i)
		if h.GSOType == GSONone {
			out = append(out, p)
			continue
		}
		out = append(out, oracleSplit(h, p)...)
	}
	return out
}

// flowKey names the flow of a packet; packets that are opaque count to no flow but their hosts'.
func flowKey(p []byte) string {
	l := layoutOf(p)
	switch {
	case l.kind == opaque:
		return ""
	case l.kind.v6():
		return string(p[6:7]) + string(p[8:44])
	}
	return string(p[9:10]) + string(p[12:24])
}

// normal removes from a packet what merging may change: the ID where DF makes it meaningless, and the missing checksum.
func normal(p []byte) string {
	p = slices.Clone(p)
	l := layoutOf(p)
	if l.kind == opaque || !validChecksums(p) {
		return string(p)
	}
	if !l.kind.v6() && packet.IPv4(p).DontFragment() {
		clear(p[4:6])
		clear(p[10:12])
	}
	if l.kind == udp4 && be.Uint16(p[26:]) == 0 {
		fix(p, 20, true)
	}
	return string(p)
}

// sameFlows checks that each flow has the same packets in the same order.
func sameFlows(t testing.TB, got, want [][]byte) {
	t.Helper()
	g, w := map[string][]string{}, map[string][]string{}
	for _, p := range got {
		g[flowKey(p)] = append(g[flowKey(p)], normal(p))
	}
	for _, p := range want {
		w[flowKey(p)] = append(w[flowKey(p)], normal(p))
	}
	if len(g) != len(w) || len(got) != len(want) {
		t.Fatalf("got %d packets of %d flows, want %d of %d", len(got), len(g), len(want), len(w))
	}
	for k := range w {
		if !slices.Equal(g[k], w[k]) {
			t.Fatalf("flow %x: its packets differ, or their order", k)
		}
	}
}

// script turns bytes into a sequence of packets that mostly continue their flow, now and then with something unusual.
func script(b []byte) [][]byte {
	var pkts [][]byte
	flows := make([]spec, 4)
	for i := range flows {
		flows[i] = spec{v6: i == 1 || i == 3, udp: i >= 2, df: true, src: 1, dst: 1, port: uint16(i)}
	}
	for ; len(b) >= 3 && len(pkts) < 300; b = b[3:] {
		f := &flows[b[0]%4]
		s := *f
		size := 40
		if b[2]&0x80 != 0 {
			size = int(b[2] & 0x7f)
		}
		s.payload = pattern(size, int(b[0]))
		twist(&s, b[1])
		p := s.packet()
		if b[1] == 30 && len(p) > 0 {
			p[int(b[2])%len(p)] ^= 0x10
		}
		pkts = append(pkts, p)
		f.seq, f.id = s.seq+uint32(size), s.id+uint16(b[0]>>7)
	}
	return pkts
}

// twist changes one thing about a packet.
func twist(s *spec, b byte) {
	switch b {
	case 1:
		s.flags = packet.ACK | packet.PSH
	case 2:
		s.flags = packet.ACK | packet.FIN
	case 3:
		s.flags = packet.ACK | packet.CWR
	case 4:
		s.flags = packet.SYN
	case 5:
		s.ack++
	case 6:
		s.seq++
	case 7:
		s.id++
	case 8:
		s.df = false
	case 9:
		s.frag = 0x2000
	case 10:
		s.zero = true
	case 11:
		s.options = []byte{1, 1, 1, 1}
	case 12:
		s.ipOpts = make([]byte, 8)
	case 13:
		s.tos = 3
	case 14:
		s.window++
	}
}

func FuzzMerge(f *testing.F) {
	f.Add(bytes.Repeat([]byte{0, 0, 0}, 70))
	f.Add([]byte{128, 0, 0, 129, 0, 0, 130, 10, 0, 130, 10, 0, 128, 1, 0, 128, 0, 200, 1, 3, 0, 0, 30, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		pkts := script(b)
		out := merge(t, true, pkts...)
		sameFlows(t, unmerge(out), pkts)
		for i := range out.all {
			if h, p := out.at(i); h.GSOType != GSONone {
				for _, seg := range splitAll(t, h, p, 64) {
					if !validChecksums(seg) {
						t.Fatal("a merged packet has a wrong checksum")
					}
				}
			}
		}
	})
}

func FuzzMergeRaw(f *testing.F) {
	f.Add(spec{}.packet(), spec{v6: true}.packet(), spec{udp: true}.packet())
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		pkts := [][]byte{a, b, c, a, b, c}
		sameFlows(t, unmerge(merge(t, true, pkts...)), pkts)
	})
}

func FuzzSplitMerge(f *testing.F) {
	f.Add(uint16(3000), uint16(1000), byte(0), byte(0x18), uint16(5), []byte("options!"))
	f.Add(uint16(60000), uint16(1380), byte(3), byte(0x91), uint16(0xfffe), []byte{})
	f.Fuzz(func(t *testing.T, n, size uint16, shape, flags byte, id uint16, options []byte) {
		s := spec{v6: shape&1 != 0, udp: shape&2 != 0, df: shape&4 != 0, id: id, seq: uint32(id) << 16, tos: shape}
		s.flags = packet.TCPFlags(flags) | packet.ACK
		s.options = options[:min(len(options), 40)&^3]
		s.payload = pattern(min(int(n), packet.MaxLen-100), int(id))
		h, p := s.superPacket(max(1, int(size)))
		want := oracleSplit(h, p)
		got := splitAll(t, h, p, 7)
		diff(t, got, want)
		diff(t, unmerge(merge(t, true, got...)), want)
	})
}

func TestMergingRandomTrafficKeepsEveryFlow(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		b := make([]byte, 3*rnd.IntN(300))
		for i := range b {
			b[i] = byte(rnd.Uint32())
			if i%3 != 0 && rnd.IntN(8) != 0 {
				b[i] = 0
			}
		}
		pkts := script(b)
		sameFlows(t, unmerge(merge(t, true, pkts...)), pkts)
	}
}

// TestAddSummedMatchesAdd compares what comes of random packets, some of them damaged, with and without AddVerified.
func TestAddSummedMatchesAdd(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		b := make([]byte, 3*rnd.IntN(200))
		for i := range b {
			if rnd.IntN(6) == 0 {
				b[i] = byte(rnd.Uint32())
			}
		}
		pkts := script(b)
		for _, p := range pkts {
			if rnd.IntN(10) == 0 {
				p[rnd.IntN(len(p))] ^= 1
			}
		}
		want := merge(t, true, pkts...)
		m, got := NewMerger(true), trainSink{}
		for _, p := range pkts {
			if ChecksumsOK(p) {
				m.AddVerified(p)
			} else {
				m.Add(p)
			}
		}
		if _, err := m.Flush(&got); err != nil {
			t.Fatal(err)
		}
		diff(t, got.all, want.all)
	}
}

// discard is a Sink that forgets.
type discard struct{}

func (discard) WriteTrain([][]byte) error { return nil }

func TestMergeAllocatesNothing(t *testing.T) {
	pkts := slices.Concat(spec{}.run(45, 1380), spec{udp: true, v6: true}.run(45, 1200), spec{frag: 1}.run(3, 10))
	m := NewMerger(true)
	var sink Sink = discard{}
	if n := testing.AllocsPerRun(20, func() {
		for _, p := range pkts {
			m.Add(p)
		}
		if _, err := m.Flush(sink); err != nil {
			t.Error(err)
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}
