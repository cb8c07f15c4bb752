// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// standing is the result of triage for one message.
type standing uint8

const (
	unchecked standing = iota // a worker checks the MACs
	mac1Valid                 // mac1 is valid, but not mac2
	admitted                  // no cookie is needed, and the rate limit of the source is respected
)

// Gate queues the handshake messages of a device, and decides which it handles. Lanes and workers use
// it, so it is safe for concurrent use.
type Gate struct {
	Endpoints Endpoints // of peers that run

	queue   queue
	limiter peer.Limiter // of messages with a cookie, under load
	known   peer.Limiter // of messages without one from known endpoints, under load
	cookies cookieLimit  // for other messages without one, under load
}

// Init prepares the Gate.
func (g *Gate) Init() {
	g.queue.init()
	g.Endpoints.init()
	g.cookies.init()
}

// Recipients are the peers of a device.
type Recipients interface {
	// Awaits reports whether a response or cookie reply has a receiver index of ours, and is within
	// the peer's limit. Only the peer and an attacker on the path know the index.
	Awaits(index uint32, now int64) bool
}

// Put copies a message of at most wire.InitiationSize bytes to a queue, or returns why not. c is nil
// without a private key. It does not block, and does no Diffie-Hellman operation.
func (g *Gate) Put(msg []byte, from underlay.Endpoint, c *noise.CookieChecker, r Recipients, now int64) drop.Reason {
	var t triage
	if g.UnderLoad(now) {
		if t = g.triage(msg, from, c, r, now); t.reason != drop.None {
			return t.reason
		}
	} else {
		g.cookies.senders.release(now)
	}
	m := g.queue.free.Get().(*Message)
	m.From, m.standing, m.n = from, t.standing, copy(m.bytes[:], msg)
	if !g.queue.put(m, t.reserve) {
		g.queue.free.Put(m)
		return drop.HSQueueFull
	}
	t.cookies.count(now)
	return drop.None
}

// Shared returns the queue for all messages, and Reserved the queue for messages that triage
// prefers. The receiver of a message calls Take, and Done at the end.
func (g *Gate) Shared() <-chan *Message { return g.queue.messages }

// Reserved returns the reserved queue.
func (g *Gate) Reserved() <-chan *Message { return g.queue.reserved }

// Waiting returns the number of messages that wait.
func (g *Gate) Waiting() int { return len(g.queue.messages) + len(g.queue.reserved) }

// UnderLoad reports whether messages arrive faster than workers handle them.
func (g *Gate) UnderLoad(now int64) bool { return g.queue.underLoad(now) }

// Take is called after a message has left its queue.
func (g *Gate) Take(m *Message) {
	if m.group != nil {
		m.group.Add(-1)
	}
}

// Done releases a message.
func (g *Gate) Done(m *Message) { g.queue.free.Put(m) }

// Admit reports whether a message of a queue deserves the cost of a Diffie-Hellman operation. It checks
// mac1, unless a lane has. Under load it also requires a cookie, and limits the rate per source address
// (WireGuard paper §5.3). Other reasons than None are HSBadMAC1, HSRateLimited, and HSNoCookie: the
// caller answers with a cookie.
func (g *Gate) Admit(m *Message, c *noise.CookieChecker, now int64) drop.Reason {
	mac1, mac2 := m.standing == mac1Valid, false
	if m.standing == unchecked {
		mac1, mac2 = c.Check(m.Bytes(), m.From.Dst, now)
	}
	switch {
	case m.standing == admitted:
		return drop.None
	case !mac1:
		return drop.HSBadMAC1
	case !g.UnderLoad(now):
		return drop.None
	case !mac2:
		return drop.HSNoCookie
	case !g.limiter.Allow(now, m.From.Dst.Addr()):
		return drop.HSRateLimited
	}
	return drop.None
}

// triage is the decision about a message that arrives under load.
type triage struct {
	standing standing
	reserve  bool         // the message may use the reserved queue
	cookies  cookieCounts // of the message, once it is queued
	reason   drop.Reason  // the message is dropped, unless None
}

// triage decides about a message under load.
func (g *Gate) triage(msg []byte, from underlay.Endpoint, c *noise.CookieChecker, r Recipients, now int64) triage {
	kind, reason := wire.Classify(msg)
	switch {
	case reason != drop.None:
		return triage{reason: reason}
	case c == nil:
		return triage{reason: drop.HSInvalid}
	case kind == wire.TypeCookieReply:
		return triage{reserve: r.Awaits(wire.ReceiverIndex(msg), now)}
	}
	mac1, mac2 := c.Check(msg, from.Dst, now)
	switch {
	case !mac1:
		return triage{reason: drop.HSBadMAC1}
	case mac2 && !g.limiter.Allow(now, from.Dst.Addr()):
		return triage{reason: drop.HSRateLimited}
	case mac2:
		return triage{standing: admitted, reserve: true}
	case kind == wire.TypeResponse && r.Awaits(wire.ReceiverIndex(msg), now):
		return triage{standing: admitted, reserve: true}
	}
	if g.Endpoints.has(from.Dst) && g.known.Allow(now, from.Dst.Addr()) {
		return triage{standing: mac1Valid, reserve: true}
	}
	cookies, ok := g.cookies.allow(now, from.Dst.Addr())
	if !ok {
		return triage{reason: drop.HSRateLimited}
	}
	return triage{standing: mac1Valid, cookies: cookies}
}
