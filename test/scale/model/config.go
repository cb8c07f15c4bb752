// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"fmt"
	"time"
)

// Spread is how the sender takes outer source ports.
type Spread int

const (
	// Off sends everything from the canonical port.
	Off Spread = iota
	// LeastLoaded spreads over spread.MaxPorts ports that the sender chose.
	LeastLoaded
	// Planned spreads over ports that the receiver planned by its NIC's key.
	Planned
)

// String names it as plots do.
func (s Spread) String() string { return [...]string{"off", "on", "planned"}[s] }

// Lines are the cache lines that all lanes of a peer write, and what it takes one lane to have a turn at it when
// others want it as well, in ns. While a lane holds the line the others wait, and burn their cores.
type Lines struct {
	// Nonce is the session's counter: one turn for each run sent.
	Nonce float64 `json:"nonce_ns"`
	// Window is the replay window: per element received, and per packet.
	WindowElement float64 `json:"window_element_ns"`
	WindowPacket  float64 `json:"window_packet_ns"`
	// Send is what all senders share inside the kernel: one turn for each run sent.
	Send float64 `json:"send_ns"`
	// Alone is a turn at a line that no other lane has touched since.
	Alone float64 `json:"alone_ns"`
}

// Config is one run of the model.
type Config struct {
	Costs Costs
	Lines Lines
	// Train is the largest train, and so that of a flow that has much to send.
	Train Train
	// Ack is what comes back for each train.
	Ack Train
	// HandOff is what it takes to have a train sealed or opened on another core, in ns of that core beyond the work
	// itself; HandBack is what the train's next stage takes longer, here again.
	HandOff, HandBack float64

	// Cores of each machine, and the lanes and NIC queues, of which 0 means one per core.
	Cores, Lanes, Queues int
	// OneMachine puts both ends on the same cores, Cable leaves out the NICs: what Send costs is all it takes to get a
	// train to the other end's socket, as over a veth, where the receiver's softirq runs in the sender's thread. Together
	// they are what can be measured on one machine.
	OneMachine, Cable bool
	Spread            Spread
	// LaneByHash has the kernel choose among the sockets of one port (SO_REUSEPORT), by a hash that has nothing to do with
	// the NIC's, in place of the source port (underlay.Selection).
	LaneByHash bool
	// SteerEven deals flows to transmit lanes in turn (what if), in place of their hash.
	SteerEven bool
	// Help lets idle cores seal and open the trains of a lane that has more than one waiting; HelpMore has them split and
	// merge them as well.
	Help, HelpMore bool
	// Link is the wire's rate in bits per second; 0 is without limit.
	Link float64

	// Elephants are flows that always have more to send, within a window as TCP's.
	Elephants int
	// Mice are bytes per second of short flows that come and go: Poisson arrivals, sizes by a bounded Pareto
	// distribution from 4 kB to 4 MB (shape 1.2).
	Mice float64
	// Poisson is trains per second of one flow that no window holds back; for checks against queueing theory.
	Poisson float64

	// Window is the most bytes that one flow has on the way.
	Window int
	// Closed has elephants keep their whole Window on the way, whatever happens, while no queue has a bound. The
	// result is the limit of the resources, without TCP's congestion control.
	Closed bool
	// Delay is the network's, one way, in ns.
	Delay int64

	Warmup, Duration time.Duration
	Seed             uint64
}

// The bounds of queues, as the engine and Linux have them.
const (
	tunQueue   = 500     // elements per TUN queue (tun.DefaultQueueLen)
	nicRing    = 1024    // packets per NIC queue
	socketSum  = 1 << 20 // bytes of all lanes' receive buffers …
	socketMin  = 1 << 19 // … but each has at least these (cmd/ropewalk: receiveBuffer)
	linkBacklg = 1 << 20 // bytes that wait for the wire
	helpAhead  = 8       // trains of one lane that are being sealed or opened elsewhere
)

// complete fills in what depends on the number of cores, and refuses what makes no sense.
func (c *Config) complete() error {
	if c.Lanes == 0 {
		c.Lanes = c.Cores
	}
	if c.Queues == 0 {
		c.Queues = c.Cores
	}
	switch {
	case c.Cores < 1 || c.Cores > 1024 || c.Lanes < 1 || c.Queues < 1:
		return fmt.Errorf("modelling %d cores, %d lanes, %d queues: want 1 or more", c.Cores, c.Lanes, c.Queues)
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

// socketBuffer is the receive buffer of one lane, in bytes.
func (c *Config) socketBuffer() int { return max(socketSum/c.Lanes, socketMin) }
