// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// TestFlowsFallEvenlyOnLanes counts flows per lane, with the kernel's hash and with a selection. A ropewalk sender
// assigns flows to ports the same way. docs/dev/model.md has the figures that it prints (-v).
func TestFlowsFallEvenlyOnLanes(t *testing.T) {
	const rounds = 20
	requireNamespace(t)
	a := open(t, Config{})
	for openSource(t, a) < 200 {
	}
	rng := rand.New(rand.NewPCG(9, 10))
	for _, planned := range []bool{false, true} {
		for _, lanes := range []int{4, 8} {
			for _, flows := range []int{16, 64} {
				var hash, selected tally
				for range rounds {
					dealFlows(t, a, rng, planned, lanes, flows, &hash, &selected)
				}
				t.Logf("planned %v, %d lanes, %d flows: hash %v; by port %v", planned, lanes, flows, &hash, &selected)
				if selected.idle != 0 || selected.busiest != rounds*flows/lanes {
					t.Errorf("planned %v, %d lanes, %d flows: %v", planned, lanes, flows, &selected)
				}
			}
		}
	}
}

// tally sums the results of several rounds.
type tally struct {
	rounds, busiest, idle int
	mean                  float64
	last                  []int
}

func (t *tally) add(perLane []int) {
	t.rounds++
	sum := 0
	for _, n := range perLane {
		sum += n
		if n == 0 {
			t.idle++
		}
	}
	t.mean = float64(sum) / float64(len(perLane))
	t.busiest += slices.Max(perLane)
	t.last = perLane
}

func (t *tally) String() string {
	rounds := float64(t.rounds)
	return fmt.Sprintf("busiest %.2f × mean, %.2f lanes idle, last %v", float64(t.busiest)/rounds/t.mean, float64(t.idle)/rounds, t.last)
}

// dealFlows opens a port, and counts the flows that arrive at each lane.
func dealFlows(t *testing.T, a *Port, rng *rand.Rand, planned bool, lanes, flows int, hash, selected *tally) {
	t.Helper()
	p := open(t, Config{Lanes: lanes})
	defer p.Close()
	came, to := listen(p), loopback(p, rng.IntN(2) == 0)
	s, ports := defaultRange(), make([]uint16, spread.MaxPorts)
	for i := range ports {
		ports[i] = spread.DefaultPorts.First + uint16(i)
	}
	if planned {
		ports = plan(t, rng, lanes, to.Dst)
		s.Plans = []underlay.Plan{{From: to.Dst.Addr(), Ports: ports}}
	}
	chosen := choosePorts(rng, ports, flows)
	hash.add(count(t, a, came, &to, chosen, lanes))
	selectLanes(t, p, s)
	selected.add(count(t, a, came, &to, chosen, lanes))
}

// plan returns one port for each queue of a NIC with a random key and as many queues as there are lanes.
func plan(t *testing.T, rng *rand.Rand, queues int, to netip.AddrPort) []uint16 {
	t.Helper()
	for {
		rss := &spread.RSS{Device: "nic", Key: make([]byte, 52), Indirection: spread.EqualIndirection(queues)}
		for i := range rss.Key {
			rss.Key[i] = byte(rng.Uint32())
		}
		candidates := spread.Ports{First: spread.DefaultPorts.First, Last: spread.DefaultPorts.First + 190}
		ports, err := spread.Plan(rss, to.Addr(), to, candidates, 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(ports) == queues { // one random key in a hundred leaves queues without a port
			return ports
		}
	}
}

// choosePorts assigns flows that begin together to ports, as the engine does.
func choosePorts(rng *rand.Rand, ports []uint16, flows int) (chosen []uint16) {
	loads, table := spread.NewLoads(len(ports), rng.Uint32()), spread.NewFlows(16, spread.DefaultGap)
	for _, upper := range rng.Perm(1 << 16)[:flows] {
		chosen = append(chosen, ports[table.Choose(loads, spread.Flow{Peer: 1, Hash: uint32(upper) << 16}, 1<<30, 1400)])
	}
	return chosen
}

// count sends a datagram of each flow, and returns the number that arrived at each lane.
func count(t *testing.T, a *Port, came <-chan arrival, to *underlay.Endpoint, ports []uint16, lanes int) []int {
	t.Helper()
	perLane := make([]int, lanes)
	for _, port := range ports {
		r := underlay.Run{To: to, Parts: [][]byte{{1}}, Segments: 1}
		for r.Source = 1; a.Source(r.Source) != port; r.Source++ {
		}
		if err := a.SendRun(&r); err != nil {
			t.Fatal(err)
		}
		perLane[next(t, came).lane]++
	}
	return perLane
}

// BenchmarkSelection measures the path of a datagram into a lane's full buffer. Only the lookup of the socket differs.
func BenchmarkSelection(b *testing.B) {
	if !enterNamespace(b) {
		b.Skip("needs root for a network namespace")
	}
	a := open(b, Config{})
	source, home := openSource(b, a), netip.MustParseAddr("127.0.0.1")
	fresh := func(b *testing.B, s *underlay.Selection) *Port { // one program each, as every kernel supports
		p := open(b, Config{Lanes: 8, ReceiveBuffer: 5000})
		if _, err := p.SetSelection(s); err != nil {
			b.Fatal(err)
		}
		return p
	}
	full := randomSelection(rand.New(rand.NewPCG(11, 12)), 300, 16)
	full.First, full.Last = spread.DefaultPorts.First, spread.DefaultPorts.Last
	full.Plans[20] = underlay.Plan{From: home, Ports: append(slices.Repeat([]uint16{1}, 10), a.Source(source))}
	one := underlay.Selection{Plans: full.Plans[20:21]}
	for _, c := range []struct {
		name string
		s    *underlay.Selection
	}{{"hash", &underlay.Selection{}}, {"range", defaultRange()}, {"one plan", &one}, {"all plans", &full}} {
		b.Run(c.name, func(b *testing.B) {
			to := loopback(fresh(b, c.s), false)
			r := underlay.Run{To: &to, Parts: [][]byte{make([]byte, 100)}, Segments: 1, Source: source}
			for b.Loop() {
				if err := a.SendRun(&r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("change", func(b *testing.B) {
		requireReplaceable(b)
		p := fresh(b, &one)
		for b.Loop() {
			if _, err := p.SetSelection(&full); err != nil {
				b.Fatal(err)
			}
		}
	})
}
