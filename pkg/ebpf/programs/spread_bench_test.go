// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/expect"
)

// Each run gets the packet that the previous one changed. The only lane port here is therefore the listen port, so that
// the packet stays the same. The first run computes the hash that packets of WireGuard already have. All that a message costs between two
// probes is included: the local address, the proof of its lane, and the count after which the next probe is due.
func BenchmarkSpread(b *testing.B) {
	udp := data(from(us4, 51819), them4).bytes()
	for _, bb := range []struct {
		name   string
		in     []byte
		lanes  int
		gap    time.Duration
		others bool // all entries of the flow table are live, and another peer's
	}{
		{"not UDP", set(udp, 14+9, 6), 16, spread.DefaultGap, false},
		{"UDP of others", udp, 16, spread.DefaultGap, false},
		{"v6 UDP of others", data(from(us6, 51819), them6).bytes(), 16, spread.DefaultGap, false},
		{"handshake", data(us4, them4).with(func(d *datagram) { d.payload = message(1, 148) }).bytes(), 16, spread.DefaultGap, false},
		{"keepalive", data(us4, them4).with(func(d *datagram) { d.payload = message(4, 32) }).bytes(), 16, spread.DefaultGap, false},
		{"data to no peer", data(us4, from(them4, 1)).bytes(), 16, spread.DefaultGap, false},
		{"data of a known flow", data(us4, them4).bytes(), 16, time.Hour, false},
		{"v6 data of a known flow", data(us6, them6).bytes(), 16, time.Hour, false},
		{"data of a flow without an entry", data(us4, them4).bytes(), 16, time.Hour, true},
		{"data of a new flow, 16 lanes", data(us4, them4).bytes(), 16, time.Nanosecond, false},
		{"data of a new flow, 64 lanes", data(us4, them4).bytes(), 64, time.Nanosecond, false},
	} {
		b.Run(bb.name, func(b *testing.B) {
			s := newSpread(b, SpreadOptions{L2: true})
			expect.NoError(b, s.SetGap(bb.gap))
			expect.NoError(b, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999)}))
			for _, peer := range []string{them4, them6} {
				s.setOpenPeer(b, Peer{Tunnel: 51820, Endpoint: endpoint(peer), Lanes: ports(61000, 61000+uint16(bb.lanes)-1)})
				s.changePeer(b, 51820, endpoint(peer), func(value *spreadPeer) {
					for i := range value.Lane {
						value.Lane[i].Port.Raw = networkOrder(51820)
					}
				})
			}
			if bb.others {
				s.fillFlows(b, them6, 0, func(int) int { return 7 })
			}
			repeatRun(b, s.Egress(), bb.in)
		})
	}
}

// BenchmarkSpreadFlows measures the cost of a message when one flow sends all of them, and when each is of another flow than the last,
// by the kernel's run-time statistics. System calls between the runs make both higher than in BenchmarkSpread.
func BenchmarkSpreadFlows(b *testing.B) {
	s := newSpread(b, SpreadOptions{L2: true})
	expect.NoError(b, s.SetGap(time.Hour))
	expect.NoError(b, s.SetTunnel(Tunnel{Port: 51820, Lanes: ports(61000, 61999)}))
	s.setOpenPeer(b, Peer{Tunnel: 51820, Endpoint: endpoint(them6), Lanes: ports(61000, 61015)})
	in := data(us6, them6).bytes()
	for _, flows := range []uint32{1, 100000} {
		each := func() {
			for i := range uint32(100000) {
				setLabel(in, i%flows+1)
				_, err := s.Egress().Run(&ebpf.RunOptions{Data: in})
				expect.NoError(b, err)
			}
		}
		b.Run(fmt.Sprint(flows), func(b *testing.B) {
			each() // afterwards all flows have a lane
			b.ReportMetric(statistics(b, s.Egress(), each), "ns/packet")
		})
	}
}

// BenchmarkEmptyProgram measures the overhead, to be subtracted from the others.
func BenchmarkEmptyProgram(b *testing.B) {
	loadSpreadFor(b, SpreadOptions{})
	for kind, name := range map[ebpf.ProgramType]string{ebpf.SchedCLS: "tc", ebpf.XDP: "xdp"} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
		})
		expect.NoError(b, err)
		b.Run(name, func(b *testing.B) { repeatRun(b, p, data(us4, them4).bytes()) })
		expect.NoError(b, p.Close())
	}
}

// Each run gets the packet that the previous one changed. In the last case the host therefore has two tunnels, and each listens at the
// other's lane port, so that the packet's ports change in every run.
func BenchmarkGather(b *testing.B) {
	s := newGather(b)
	for name, p := range map[string]*ebpf.Program{"tc": s.Ingress(), "xdp": s.XDP()} {
		udp := data(them4, from(us4, 51819)).bytes()
		b.Run(name+"/not UDP", func(b *testing.B) { repeatRun(b, p, set(udp, 14+9, 6)) })
		b.Run(name+"/UDP of others", func(b *testing.B) { repeatRun(b, p, udp) })
		b.Run(name+"/from the listen port", func(b *testing.B) { repeatRun(b, p, data(them4, us4).bytes()) })
	}
	swapPorts(b, s)
	for name, p := range map[string]*ebpf.Program{"tc": s.Ingress(), "xdp": s.XDP()} {
		b.Run(name+"/from a lane port", func(b *testing.B) { repeatRun(b, p, data(from(them4, 61000), us4).bytes()) })
		b.Run(name+"/v6 from a lane port", func(b *testing.B) { repeatRun(b, p, data(from(them6, 61000), us6).bytes()) })
	}
}

// swapPorts makes gather change source port 61000 into 61001 and port 51820 into 51821, and back.
func swapPorts(b *testing.B, s *Spread) {
	b.Helper()
	for i, other := range []uint16{1, 0} {
		port, own, to := uint32(51820+i), spreadLocalPort{}, 51820+other
		own.ListenPort.Raw = networkOrder(to)
		expect.NoError(b, s.maps.LocalPorts.Put(&port, &own))
		for _, peer := range []string{them4, them6} {
			key, value := sourceKey(to, endpoint(peer).Addr()), spreadSource{First: 61000 + uint16(i), Last: 61000 + uint16(i), Proved: 1, HeardAt: math.MaxInt64}
			value.Heard[61000%MaxGather/64] = ^uint64(0)
			value.EndpointPort.Raw = networkOrder(61000 + other)
			expect.NoError(b, s.maps.Sources.Put(&key, &value))
		}
	}
}

// repeatRun reports the cost of a packet over repeated runs.
func repeatRun(b *testing.B, p *ebpf.Program, in []byte) float64 {
	b.Helper()
	_, each, err := p.Benchmark(in, 1000000, b.ResetTimer)
	if err != nil {
		b.Skipf("needs BPF_PROG_TEST_RUN: %v", err)
	}
	b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
	return float64(each.Nanoseconds())
}

// singleRuns returns the cost of a packet over single runs.
func singleRuns(b *testing.B, p *ebpf.Program, in []byte) float64 {
	b.Helper()
	return statistics(b, p, func() {
		for range 20000 {
			if _, err := p.Run(&ebpf.RunOptions{Data: in}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// statistics returns the mean time that a program took while f ran it, in nanoseconds.
func statistics(b *testing.B, p *ebpf.Program, f func()) float64 {
	b.Helper()
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		b.Skipf("needs BPF_ENABLE_STATS: %v", err)
	}
	defer stats.Close()
	before, err := p.Stats()
	expect.NoError(b, err)
	f()
	after, err := p.Stats()
	expect.NoError(b, err)
	return float64(after.Runtime-before.Runtime) / float64(after.RunCount-before.RunCount)
}
