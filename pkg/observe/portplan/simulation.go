// SPDX-License-Identifier: Apache-2.0

package portplan

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// Simulation is the input of a simulation: flows to a NIC.
type Simulation struct {
	Flows, Rounds int // at least 1
	Lanes         int // number of source ports; 0 for one per queue
	Seed          uint64
	RSS           spread.RSS
	Source        string // origin of RSS, for the report
	From          netip.Addr
	To            netip.AddrPort
	Candidates    spread.Ports
}

// Report is the result of a simulation.
type Report struct {
	Flows      int            `json:"flows"`
	Queues     []int          `json:"queues"` // queue numbers, in the order of Loads
	From       netip.Addr     `json:"from"`
	To         netip.AddrPort `json:"to"`
	Ports      string         `json:"ports"`
	Rounds     int            `json:"rounds"`
	Strategies []Strategy     `json:"strategies"`
	PlanError  string         `json:"plan_error,omitempty"` // error of the port plan

	source string
}

// Strategy is one way to choose a flow's source port, with its result.
type Strategy struct {
	Name          string    `json:"name"`
	Ports         []uint16  `json:"ports"`
	Loads         []float64 `json:"loads"`                  // of the first round, by queue, in flows
	BusiestToMean float64   `json:"busiest_to_mean"`        // of the first round
	Idle          int       `json:"idle_queues"`            // of the first round
	Median        float64   `json:"median_busiest_to_mean"` // ratio of busiest to mean, median of all rounds

	byHash  bool  // choose by flow hash, not by load
	queue   []int // index of the queue, by lane
	packets []int // of the round, by queue
	ratios  []float64
}

// Run simulates all rounds. It fails for an empty simulation, and with spread.ErrUnknownHash if the NIC's hash cannot be
// computed.
func (s *Simulation) Run() (*Report, error) {
	if s.Flows < 1 || s.Rounds < 1 || s.Lanes < 0 || s.Candidates.Len() < 1 || len(s.RSS.Indirection) < 1 {
		return nil, fmt.Errorf("simulating %d flows in %d rounds with %d lanes, %d ports and %d indirection table entries: nothing to simulate",
			s.Flows, s.Rounds, s.Lanes, s.Candidates.Len(), len(s.RSS.Indirection))
	}
	r := &Report{
		Flows: s.Flows, Queues: s.RSS.Queues(), From: s.From, To: s.To, Ports: s.Candidates.String(),
		Rounds: s.Rounds, source: s.Source,
	}
	ports := s.unplanned(len(r.Queues))
	r.Strategies = []Strategy{{Name: "hash", Ports: ports, byHash: true}, {Name: "least loaded", Ports: ports}}
	if planned, err := spread.Plan(&s.RSS, s.From, s.To, s.Candidates, s.Lanes); err != nil {
		r.PlanError = err.Error()
	} else {
		r.Strategies = append(r.Strategies, Strategy{Name: "planned", Ports: planned})
	}
	for i := range r.Strategies {
		if err := r.Strategies[i].simulate(s, r.Queues); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// unplanned returns the first ports of the range: one per lane, or one per queue.
func (s *Simulation) unplanned(queues int) []uint16 {
	n := s.Lanes
	if n == 0 {
		n = min(queues, spread.MaxPorts)
	}
	ports := make([]uint16, min(n, s.Candidates.Len()))
	for i := range ports {
		ports[i] = s.Candidates.First + uint16(i)
	}
	return ports
}

const (
	planPackets    = 20 // of each flow, per round
	planPacketSize = 1400
	packetInterval = int64(time.Millisecond)  // between packets of a flow
	roundInterval  = int64(100 * time.Second) // between rounds, so that flows and loads expire
	planTableLog2  = 16
)

func (c *Strategy) simulate(s *Simulation, queues []int) error {
	c.queue = make([]int, len(c.Ports))
	for lane, port := range c.Ports {
		q, err := s.RSS.Queue(netip.AddrPortFrom(s.From, port), s.To)
		if err != nil {
			return err
		}
		c.queue[lane], _ = slices.BinarySearch(queues, q)
	}
	c.packets = make([]int, len(queues))
	flows, loads := spread.NewFlows(planTableLog2, spread.DefaultGap), spread.NewLoads(len(c.Ports), 0)
	rng := rand.New(rand.NewPCG(s.Seed, 0))
	for round := range s.Rounds {
		clear(c.packets)
		c.simulateRound(flows, loads, randomFlows(rng, s.Flows), int64(round+1)*roundInterval)
		c.recordRound(s.Flows)
	}
	slices.Sort(c.ratios)
	c.Median = c.ratios[len(c.ratios)/2]
	return nil
}

// simulateRound simulates the packets of all flows.
func (c *Strategy) simulateRound(flows *spread.Flows, loads *spread.Loads, hashes []uint32, now int64) {
	step := packetInterval / int64(len(hashes))
	for range planPackets {
		for _, hash := range hashes {
			now += step
			lane := int(hash % uint32(len(c.Ports)))
			if !c.byHash {
				lane = flows.Choose(loads, spread.Flow{Peer: 1, Hash: hash}, now, planPacketSize)
			}
			c.packets[c.queue[lane]]++
		}
	}
}

// recordRound stores the result of a round.
func (c *Strategy) recordRound(flows int) {
	ratio := float64(slices.Max(c.packets)*len(c.packets)) / float64(flows*planPackets)
	if c.ratios = append(c.ratios, ratio); len(c.ratios) > 1 {
		return
	}
	c.BusiestToMean = ratio
	for _, n := range c.packets {
		c.Loads = append(c.Loads, float64(n)/planPackets)
		if n == 0 {
			c.Idle++
		}
	}
}

// randomFlows returns the flow hashes, as the engine computes them, of TCP flows with random addresses and ports.
func randomFlows(rng *rand.Rand, n int) []uint32 {
	hashes := make([]uint32, n)
	for i := range hashes {
		ip := make([]byte, 40)
		ip[0], ip[3], ip[9] = 0x45, byte(len(ip)), 6
		binary.BigEndian.PutUint64(ip[12:], rng.Uint64()) // addresses
		binary.BigEndian.PutUint32(ip[20:], rng.Uint32()) // ports
		ip[32] = 0x50
		hashes[i] = packet.FlowHash(ip)
	}
	return hashes
}
