// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/packet"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// spreadScene is flows on their way to a NIC.
type spreadScene struct {
	flows, lanes, rounds int // lanes 0: one per queue
	seed                 uint64
	rss                  spread.RSS
	source               string // of rss, for people
	from                 netip.Addr
	to                   netip.AddrPort
	candidates           spread.Ports
}

// spreadReport is what came of it.
type spreadReport struct {
	Flows   int            `json:"flows"`
	Queues  []int          `json:"queues"` // numbers, in the order of loads
	From    netip.Addr     `json:"from"`
	To      netip.AddrPort `json:"to"`
	Ports   string         `json:"ports"`
	Rounds  int            `json:"rounds"`
	Choices []spreadChoice `json:"choices"`
	NoPlan  string         `json:"no_plan,omitempty"` // why there are no planned ports

	source string
}

// spreadChoice is one way to choose a flow's source port.
type spreadChoice struct {
	Name          string    `json:"name"`
	Ports         []uint16  `json:"ports"`
	Loads         []float64 `json:"loads"`             // of the first round, by queue, in flows
	BusiestToMean float64   `json:"busiest_to_mean"`   // of the first round
	Idle          int       `json:"idle_queues"`       // of the first round
	Median        float64   `json:"median_of_busiest"` // to mean, over all rounds

	byHash  bool // not by load
	queue   []int
	packets []int // of the round, by queue
	ratios  []float64
}

// run plays all rounds.
func (s *spreadScene) run() (*spreadReport, error) {
	r := &spreadReport{
		Flows: s.flows, Queues: s.rss.Queues(), From: s.from, To: s.to, Ports: s.candidates.String(),
		Rounds: s.rounds, source: s.source,
	}
	ports := s.unplanned(len(r.Queues))
	r.Choices = []spreadChoice{{Name: "hash", Ports: ports, byHash: true}, {Name: "least loaded", Ports: ports}}
	if planned, err := spread.Plan(&s.rss, s.from, s.to, s.candidates, s.lanes); err != nil {
		r.NoPlan = err.Error()
	} else {
		r.Choices = append(r.Choices, spreadChoice{Name: "planned", Ports: planned})
	}
	for i := range r.Choices {
		if err := r.Choices[i].play(s, r.Queues); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// unplanned are the first ports of the range: as many as lanes, or as queues.
func (s *spreadScene) unplanned(queues int) []uint16 {
	n := s.lanes
	if n == 0 {
		n = min(queues, spread.MaxPorts)
	}
	ports := make([]uint16, min(n, s.candidates.Len()))
	for i := range ports {
		ports[i] = s.candidates.First + uint16(i)
	}
	return ports
}

const (
	planPackets    = 20 // of each flow, per round
	planPacketSize = 1400
	planInterval   = int64(time.Millisecond)  // between packets of a flow
	planPause      = int64(100 * time.Second) // between rounds: nothing is left of flows and loads
	planTableLog2  = 16
)

func (c *spreadChoice) play(s *spreadScene, queues []int) error {
	c.queue = make([]int, len(c.Ports))
	for lane, port := range c.Ports {
		q, err := s.rss.Queue(netip.AddrPortFrom(s.from, port), s.to)
		if err != nil {
			return err
		}
		c.queue[lane], _ = slices.BinarySearch(queues, q)
	}
	c.packets = make([]int, len(queues))
	flows, loads := spread.NewFlows(planTableLog2, spread.DefaultGap), spread.NewLoads(len(c.Ports), 0)
	rng := rand.New(rand.NewPCG(s.seed, 0))
	for round := range s.rounds {
		clear(c.packets)
		c.round(flows, loads, randomFlows(rng, s.flows), int64(round+1)*planPause)
		c.count(s.flows)
	}
	slices.Sort(c.ratios)
	c.Median = c.ratios[len(c.ratios)/2]
	return nil
}

// round sends the packets of all flows.
func (c *spreadChoice) round(flows *spread.Flows, loads *spread.Loads, hashes []uint32, now int64) {
	step := planInterval / int64(len(hashes))
	for range planPackets {
		for _, hash := range hashes {
			now += step
			lane := int(hash % uint32(len(c.Ports)))
			if !c.byHash {
				lane = flows.Choose(loads, hash, now, planPacketSize)
			}
			c.packets[c.queue[lane]]++
		}
	}
}

// count closes a round.
func (c *spreadChoice) count(flows int) {
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

// randomFlows are the hashes, as the engine computes them, of TCP flows between random ends.
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
