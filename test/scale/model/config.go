// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Spread is how the sender selects outer source ports.
type Spread int

const (
	// Off: all packets leave from the listen port.
	Off Spread = iota
	// LeastLoaded: flows are spread over spread.MaxPorts ports that the sender selected.
	LeastLoaded
	// Planned: flows are spread over ports that the receiver planned with its NIC's RSS key.
	Planned
)

// String returns the name for plots.
func (s Spread) String() string { return [...]string{"off", "on", "planned"}[s] }

// Lines is the time, in ns, that a lane holds each of the cache lines which all lanes of a peer
// write. Other lanes want them at the same time. Lanes that wait keep their cores busy.
type Lines struct {
	// Nonce is the session's counter, once per run sent.
	Nonce float64 `json:"nonce_ns"`
	// Window is the replay window, per element received and per packet.
	WindowElement float64 `json:"window_element_ns"`
	WindowPacket  float64 `json:"window_packet_ns"`
	// Send stands for all cache lines that senders share inside the kernel, once per run sent.
	Send float64 `json:"send_ns"`
	// Alone is the time to access a cache line that no other lane has accessed since.
	Alone float64 `json:"alone_ns"`
}

// Host is the size of one machine. Workers is the number of helpers.
type Host struct{ Cores, Lanes, Queues, Workers int }

// complete sets defaults that depend on the number of cores.
func (h Host) complete() Host {
	h.Lanes, h.Queues = cmp.Or(h.Lanes, h.Cores), cmp.Or(h.Queues, h.Cores)
	h.Workers = cmp.Or(h.Workers, h.Cores)
	return h
}

func (h Host) valid() bool { return h.Cores >= 1 && h.Cores <= 1024 && h.Lanes >= 1 && h.Queues >= 1 }

// Config configures one run of the model.
type Config struct {
	Costs Costs
	Lines Lines
	// Train is the largest train, which flows with enough data send.
	Train Train
	// Ack is the acknowledgement that the receiver sends for each train.
	Ack Train
	// HandOff is the extra CPU time, in ns, of sealing or opening a train on another core. HandBack is the extra time of the
	// train's next stage on the lane's core.
	HandOff, HandBack float64
	// Wake is the part of HandOff that wakes a sleeping thread.
	Wake float64

	// Cores is the number of cores of each machine. Lanes and Queues are the numbers of lanes and NIC queues; 0 means one per core.
	Cores, Lanes, Queues int
	// Receiver is the receiving machine, if it has other numbers than the sending one.
	Receiver Host
	// OneMachine runs both ends on the same cores. Cable models a veth instead of NICs: Send includes all work up to the other
	// end's socket, since the receiver's softirq runs in the sender's thread. Both together can be measured on one machine.
	OneMachine, Cable bool
	Spread            Spread
	// LaneByHash lets the kernel select the receive socket by its SO_REUSEPORT hash, instead of by
	// the source port (underlay.Selection). The hash is independent of the NIC's.
	LaneByHash bool
	// SteerEven assigns flows to transmit lanes in turn instead of by their hash. ropewalk does not do this.
	SteerEven bool
	// Help lets idle cores seal and open trains of a lane that has more than one waiting. HelpSplitMerge lets them also split and
	// merge these trains.
	Help, HelpSplitMerge bool
	// HelpReceive lets an idle core receive the trains of a lane, one core at a time, and lets helpers split the trains that they seal.
	HelpReceive bool
	// HelpWrite lets the lane that the inner flow's hash selects write the trains of a receive lane that has more than one waiting.
	// ropewalk does not do this.
	HelpWrite bool
	// Workers is the number of helpers; 0 means one per core.
	Workers int
	// Link is the rate of the wire in bits per second; 0 means unlimited.
	Link float64

	// Elephants is the number of flows that always have data to send, limited by a window as in TCP.
	Elephants int
	// Mice is the load of short flows in bytes per second: Poisson arrivals, sizes by a bounded Pareto distribution from 4 kB to 4
	// MB (shape 1.2).
	Mice float64
	// Poisson is the rate, in trains per second, of one flow without a window. It is for comparison with queueing theory.
	Poisson float64

	// Window is the largest number of bytes that one flow has in flight.
	Window int
	// ClosedLoop keeps Window bytes of each elephant in flight at all times, with unbounded queues. The result is the limit of the
	// resources, without TCP's congestion control.
	ClosedLoop bool
	// Delay is the one-way delay of the network, in ns.
	Delay int64

	Warmup, Duration time.Duration
	Seed             uint64
}

// The sizes of queues, as in the engine and in Linux.
const (
	tunQueue     = 500     // elements per TUN queue
	nicRing      = 1024    // packets per NIC queue
	socketSum    = 1 << 20 // bytes of all lanes' receive buffers together,
	socketMin    = 1 << 19 // but at least this for each (cmd/ropewalk: receiveBuffer)
	linkBacklog  = 1 << 20 // bytes that wait for the wire
	maxHandedOut = 8       // trains of one lane that helpers are sealing or opening
)

// complete sets defaults that depend on the number of cores, and rejects invalid values.
func (c *Config) complete() error {
	sender := c.sender().complete()
	c.Lanes, c.Queues, c.Workers = sender.Lanes, sender.Queues, sender.Workers
	if c.Receiver == (Host{}) {
		c.Receiver = sender
	}
	c.Receiver = c.Receiver.complete()
	switch {
	case !sender.valid() || !c.Receiver.valid() || c.OneMachine && c.Receiver.Cores != c.Cores:
		return fmt.Errorf("modelling hosts of %+v and %+v: want 1 or more of each, and the same number of cores on one machine", sender, c.Receiver)
	case c.Train.Packets < 1 || c.Train.Bytes < 1:
		return errors.New("modelling trains of nothing")
	case c.Duration <= 0 || c.Warmup < 0:
		return errors.New("modelling no time")
	case c.Spread < Off || c.Spread > Planned:
		return fmt.Errorf("modelling spread %d", int(c.Spread))
	}
	c.Window = max(c.Window, c.Train.Bytes)
	return nil
}

func (c *Config) sender() Host { return Host{c.Cores, c.Lanes, c.Queues, c.Workers} }

// socketBuffer returns the size of a lane's receive buffer, in bytes.
func (h Host) socketBuffer() int { return max(socketSum/h.Lanes, socketMin) }
