// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/ropewalk/ropewalk/test/bench/result"
	"github.com/ropewalk/ropewalk/test/scale/model"
)

// span is an expected value and its limits.
type span struct{ Low, Expected, High float64 }

// at returns the value for one of the three cases.
func (s span) at(c costCase) float64 { return [...]float64{s.Low, s.Expected, s.High}[c] }

// costCase is the case that all assumptions about costs have in common.
type costCase int

const (
	cheap costCase = iota
	expected
	dear
)

// target is a pair of machines that nobody has measured. Its costs are the costs of costs.json,
// multiplied by factors that are assumed.
type target struct {
	Name, Hosts string
	// Cores are the numbers of cores of the host under test. The other host has the last of them.
	Cores []int
	// Queues is the largest number of receive queues of the NIC.
	Queues int
	MTUs   []int
	Spread []string
	// Cipher, Rest and Softirq multiply the costs of sealing and opening, of all other stages, and of the softirq once more.
	Cipher, Rest, Softirq span
	// Transmit is the cost in ns, per packet and not measured, of segments that the NIC does not cut itself.
	Transmit span
	// Siblings multiplies all costs if more than half of the cores are in use, since two of them share a core.
	Siblings span
	// Wire and Flow are the limits of the link and of one 5-tuple, in Gbit/s.
	Wire, Flow float64
	// Assumed says where the factors come from. Doubt is the assumption that is most likely wrong.
	Assumed, Doubt string
}

func powersUpTo(n int) []int {
	var list []int
	for c := 1; c <= n; c *= 2 {
		list = append(list, c)
	}
	return list
}

// targets are the pairs of machines in docs/dev/predictions.md.
func targets() []target {
	ena := span{100, 200, 400}
	segments := "ENA does not segment UDP (`ena_netdev.c` sets no `NETIF_F_GSO_UDP_L4`): 200 ns (100 to 400) for each packet sent are assumed, not measured"
	return []target{
		{
			Name: "c6in.16xlarge", Cores: powersUpTo(64), Queues: 32, MTUs: []int{1280, 8920}, Spread: []string{result.SpreadOff, result.SpreadOn},
			Hosts: "two AWS c6in.16xlarge in a cluster placement group: 64 vCPU of Xeon 8375C (Ice Lake, AVX-512 with IFMA), ENA, 100 Gbit/s, 32 queues. " +
				"Of each core the second thread goes offline first",
			Cipher: span{0.8, 1, 1.3}, Rest: span{0.8, 1, 1.3}, Softirq: span{0.8, 1.2, 2}, Transmit: ena, Siblings: span{1, 1.25, 1.6}, Wire: 100, Flow: 10,
			Assumed: "costs of the Xeon of docs/dev/model.md; " + segments,
			Doubt: "the transmit side. If ENA's driver and the segmentation of trains cost more than 400 ns per packet, encrypting at MTU 1280 is below the range. " +
				"Next: AWS's limit of packets per second, which is not published (`pps_allowance_exceeded` in `ethtool -S` tells)",
		},
		{
			Name: "c7g.16xlarge", Cores: powersUpTo(64), Queues: 32, MTUs: []int{1280, 8920}, Spread: []string{result.SpreadOff, result.SpreadOn},
			Hosts:  "two AWS c7g.16xlarge in a cluster placement group: 64 vCPU of Graviton3 (Neoverse V1, a core each), ENA, 30 Gbit/s, 32 queues",
			Cipher: span{1.4, 2, 3}, Rest: span{0.7, 1, 1.5}, Softirq: span{0.8, 1.2, 2}, Transmit: ena, Siblings: span{1, 1, 1}, Wire: 30, Flow: 10,
			Assumed: "1.40 cycles per byte at 2.6 GHz (`make cycles-arm64`) and the slowdown inside a tunnel of 1.3 give twice the measured cost of the cipher; " + segments,
			Doubt:   "the cipher. No arm64 machine has run it: the cycles are of LLVM's model, which knows no cache and no branch",
		},
		{
			Name: "zen3-16c-25g", Cores: powersUpTo(16), Queues: 16, MTUs: []int{1420, 8920}, Spread: []string{result.SpreadOff, result.SpreadOn, result.SpreadPlanned},
			Hosts:  "two servers with an EPYC 7313P (Zen 3, 16 cores, AVX2 alone, SMT off) and one port of 25 Gbit/s of a ConnectX or E810",
			Cipher: span{1.4, 1.9, 2.5}, Rest: span{0.55, 0.8, 1.1}, Softirq: span{0.8, 1.2, 2}, Transmit: span{0, 30, 100}, Siblings: span{1, 1, 1}, Wire: 25, Flow: 25,
			Assumed: "the cipher at x/crypto's speed on a Zen 3, 0.5 ns per byte; cores that no guest shares; a NIC that segments UDP",
			Doubt:   "the cost of everything but the cipher. It was measured on a virtual machine only, and the share that virtualization has of it is unknown",
		},
		{
			Name: "xeon-32c-2x25g", Cores: powersUpTo(32), Queues: 32, MTUs: []int{1420, 8920}, Spread: []string{result.SpreadOff, result.SpreadOn, result.SpreadPlanned},
			Hosts: "two servers have a Xeon Gold 6338 (Ice Lake, 32 cores, SMT off). Each has two ports of 25 Gbit/s of one ConnectX or E810 in a bond " +
				"(LACP, `layer3+4` at the hosts and at the switch)",
			Cipher: span{0.8, 1, 1.3}, Rest: span{0.7, 0.95, 1.3}, Softirq: span{0.8, 1.2, 2}, Transmit: span{0, 30, 100}, Siblings: span{1, 1, 1}, Wire: 50, Flow: 25,
			Assumed: "costs of the Xeon of docs/dev/model.md; a NIC that segments UDP",
			Doubt: "the halves of the bond. Ports that are planned for receive queues need not be even over two members. A switch may hash without ports: " +
				"then 25 Gbit/s is the limit of all rows",
		},
	}
}

// flowPayload is the share of a frame that TCP's payload has: 52 bytes of inner headers, 60 of the tunnel's, 38 of Ethernet.
func flowPayload(mtu int) float64 { return float64(mtu-52) / float64(mtu+60+38) }

// limit returns what the wire lets pass of TCP's payload, in Gbit/s.
func (t *target) limit(mtu int, spread string) float64 {
	rate := t.Wire
	if spread == result.SpreadOff {
		rate = min(rate, t.Flow)
	}
	return rate * flowPayload(mtu)
}

// host returns a machine with that many cores, and the lanes, queues and workers that ropewalk takes by default.
func (t *target) host(cores int) model.Host {
	h := model.Host{Cores: cores, Lanes: cores, Queues: min(cores, t.Queues), Workers: min(cores-2, 4)}
	if h.Workers < 1 {
		h.Workers = -1
	}
	return h
}

// config returns the configuration of one run of the model.
func (t *target) config(f *costFile, cores, mtu int, direction, spread string, at costCase) model.Config {
	c := f.config()
	c.Train.Packets = int(math.Round(float64(f.Train.Packets) * float64(1420-52) / float64(mtu-52)))
	siblings := 1.0
	if most := t.Cores[len(t.Cores)-1]; 2*cores > most {
		siblings = t.Siblings.at(at)
	}
	for _, s := range model.AllStages() {
		by := t.Rest.at(at)
		switch s {
		case model.Seal, model.Open:
			by = t.Cipher.at(at)
		case model.Softirq:
			by *= t.Softirq.at(at)
		}
		c.Costs[s] = scaled(c.Costs[s], by*siblings)
	}
	c.Costs[model.Send].Packet += t.Transmit.at(at) * siblings
	under, other := t.host(cores), t.host(t.Cores[len(t.Cores)-1])
	if direction == result.Decrypt {
		under, other = other, under
	}
	c.Cores, c.Lanes, c.Queues, c.Workers, c.Receiver = under.Cores, under.Lanes, under.Queues, under.Workers, other
	c.Spread = map[string]model.Spread{result.SpreadOff: model.Off, result.SpreadOn: model.LeastLoaded, result.SpreadPlanned: model.Planned}[spread]
	c.Help, c.HelpReceive = true, true
	return c
}

func scaled(c model.Cost, by float64) model.Cost {
	return model.Cost{Element: c.Element * by, Packet: c.Packet * by, Byte: c.Byte * by}
}
