// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"math/bits"
	"slices"
)

const (
	// maxLost is the number of checks of a port in a row whose loss blocks it.
	maxLost = 3
	// blockedRounds is the number of rounds from one check of a blocked port to the next.
	blockedRounds = 5
	// roundBits is the number of rounds, the present one included, whose answers count.
	roundBits = 32
)

// Checks tells which source ports the path to a peer admits. While data is sent there are rounds. In each, a check leaves from the
// listen port and from each source port in use. The peer answers the one from the listen port, and lists how many rounds ago it
// last received one from each other port.
//
// A port is blocked when its last three checks were lost, each in a round whose check from the listen port was answered, if one of
// a later round was, too. So no outage, no delay and no peer that answers nothing blocks a port. All ports are blocked if that holds
// for the checks of all together: flows on ports without a check would lose packets later. After a loss another port has a check, too,
// so that one port alone blocks no others. A blocked port is open again with its next check that arrives. bpf/include/echo.h does the
// same in front of another WireGuard, for each port by itself.
//
// Checks has one user at a time. It has no clock.
type Checks struct {
	round    uint32
	answered uint32 // the rounds whose check from the listen port was answered. Here and below bit i is i rounds ago.
	ports    []portChecks
	open     portChecks // of all ports that were open together
	doubted  bool       // the present round began with a check lost
}

type portChecks struct {
	sent, arrived uint32
	blocked       bool
}

// NewChecks returns the checks of n ports, all open, whose rounds follow the given one.
func NewChecks(n int, round uint32) *Checks {
	return &Checks{round: round, ports: make([]portChecks, n)}
}

// Begin begins a round.
func (c *Checks) Begin() {
	c.doubted = c.InDoubt()
	c.round++
	c.answered <<= 1
	c.open.age()
	for i := range c.ports {
		c.ports[i].age()
	}
}

func (p *portChecks) age() { p.sent, p.arrived = p.sent<<1, p.arrived<<1 }

// Round returns the number of the present round.
func (c *Checks) Round() uint32 { return c.round }

// InDoubt reports whether an answer lacks a check of an open port. The check was lost or is late; another round tells which.
func (c *Checks) InDoubt() bool {
	return slices.ContainsFunc(c.ports, func(p portChecks) bool { return c.doubts(&p) })
}

func (c *Checks) doubts(p *portChecks) bool { return !p.blocked && p.sent&c.answered&p.since() != 0 }

// Due reports whether port i has a check in this round, and notes that it is sent. inUse reports whether data has left from the port.
// After a loss another port has one, too, to tell whether all are blocked.
func (c *Checks) Due(i int, inUse bool) bool {
	p := &c.ports[i]
	switch {
	case p.blocked:
		if p.sent&(1<<blockedRounds-1) != 0 {
			return false
		}
	case inUse, c.doubts(p), c.doubted && i == int(c.round%uint32(len(c.ports))):
		c.open.sent |= 1
	default:
		return false
	}
	p.sent |= 1
	return true
}

// Answered takes the answer to the check from the listen port in a round, with the rounds since the last check from each port. It
// reports whether a port was blocked or opened.
func (c *Checks) Answered(round uint32, ages []byte) (changed bool) {
	ago := c.round - round
	if ago >= roundBits {
		return false
	}
	c.answered |= 1 << ago
	for i := range min(len(ages), len(c.ports)) {
		p := &c.ports[i]
		if bit := p.arrives(ago + uint32(ages[i])); bit != 0 {
			c.open.arrived |= bit
			changed = changed || p.blocked
			p.blocked = false
		}
	}
	all := c.isLost(&c.open)
	for i := range c.ports {
		if p := &c.ports[i]; !p.blocked && (all || c.isLost(p)) {
			p.blocked, changed = true, true
		}
	}
	return changed
}

// arrives notes that a check has arrived. It returns its round as a bit, 0 if that is no news.
func (p *portChecks) arrives(ago uint32) uint32 {
	bit := uint32(1) << ago & p.sent &^ p.arrived
	p.arrived |= bit
	return bit
}

// isLost reports whether too many checks were lost since the last that arrived.
func (c *Checks) isLost(p *portChecks) bool {
	earlier := c.answered & (c.answered - 1) // all but the last round that was answered: its answer may have been too early
	return bits.OnesCount32(p.sent&earlier&p.since()) >= maxLost
}

// since returns the rounds after that of the last check that arrived.
func (p *portChecks) since() uint32 { return p.arrived&(0-p.arrived) - 1 }

// Block blocks port i until a check from it arrives.
func (c *Checks) Block(i int) { c.ports[i].blocked = true }

// Blocked reports whether the path does not admit port i.
func (c *Checks) Blocked(i int) bool { return c.ports[i].blocked }

// NeverArrived is the age of a check from a port from which none has arrived of late.
const NeverArrived = 0xff

// Receipts holds the last check that has arrived from each of a peer's source ports. It has one user at a time.
type Receipts struct {
	n      int // ports before this one may have a round
	rounds [MaxPorts]uint32
	known  [MaxPorts]bool
}

// Note notes a check from port i. It ignores a port that no peer has.
func (r *Receipts) Note(i int, round uint32) {
	if i < 0 || i >= MaxPorts {
		return
	}
	r.n, r.rounds[i], r.known[i] = max(r.n, i+1), round, true
}

// AppendAges appends, for each port, the number of rounds from its last check to the given round.
func (r *Receipts) AppendAges(b []byte, round uint32) []byte {
	for i := range r.n {
		age := round - r.rounds[i]
		if !r.known[i] || age > NeverArrived {
			age = NeverArrived
		}
		b = append(b, byte(age))
	}
	return b
}
