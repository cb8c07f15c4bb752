// SPDX-License-Identifier: Apache-2.0

package device

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// Under load a flood fills the queue of handshake messages. The messages of peers would then wait for their turn among those of the
// flood, or find no room: each try succeeds with the share of messages that workers can handle. Therefore lanes look at each message
// before they queue it (triage), and workers keep a share of their time for a second, reserved queue. That queue takes
//
//   - messages with a valid mac2, whose address is proven: as many per address as the limiter allows
//   - messages from the endpoint of a peer: 20 per second and address, 5 at once. The answer is a cookie.
//   - responses and cookie replies to a receiver index of ours: 8 per second and peer
//
// Other messages are queued while their source may have a cookie (cookieLimit), and dropped beyond.
//
// A sender that forges the endpoint of a peer can use up the reserved share of that address only. Messages beyond a limit, and
// those that find the reserved queue full, have the same chance as without it.

// standing is the result of triage for one message.
type standing uint8

const (
	unchecked standing = iota // a worker checks the MACs
	mac1Valid                 // mac1 is valid, but not mac2
	admitted                  // no cookie is needed, and the rate limit of the source is respected
)

// triage is the decision about a message that arrives under load.
type triage struct {
	standing standing
	reserve  bool         // the message may use the reserved queue
	cookies  cookieCounts // of the message, once it is queued
	reason   drop.Reason  // the message is dropped, unless None
}

// triage decides about a message under load. Lanes call it, so it does not block and does no Diffie-Hellman operation.
func (d *Device) triage(msg []byte, from underlay.Endpoint, now int64) triage {
	kind, reason := wire.Classify(msg)
	id := d.identity.Load()
	switch {
	case reason != drop.None:
		return triage{reason: reason}
	case id == nil:
		return triage{reason: drop.HSInvalid}
	case kind == wire.TypeCookieReply:
		return triage{reserve: d.awaits(msg, now)}
	}
	mac1, mac2 := id.checker.Check(msg, from.Dst, now)
	switch {
	case !mac1:
		d.refusals.suppressed.Add(1)
		return triage{reason: drop.HSBadMAC1}
	case mac2 && !d.limiter.Allow(now, from.Dst.Addr()):
		return triage{reason: drop.HSRateLimited}
	case mac2:
		return triage{standing: admitted, reserve: true}
	case kind == wire.TypeResponse && d.awaits(msg, now):
		return triage{standing: admitted, reserve: true}
	}
	if d.endpoints.has(from.Dst) && d.known.Allow(now, from.Dst.Addr()) {
		return triage{standing: mac1Valid, reserve: true}
	}
	cookies, ok := d.cookies.allow(now, from.Dst.Addr())
	if !ok {
		return triage{reason: drop.HSRateLimited}
	}
	return triage{standing: mac1Valid, cookies: cookies}
}

// awaits reports whether a response or cookie reply has a receiver index of ours, which only the peer and an attacker on the path
// know, and is within the peer's limit.
func (d *Device) awaits(msg []byte, now int64) bool {
	p := d.byIndex(wire.ReceiverIndex(msg))
	return p != nil && p.requests.replies.Allow(now, time.Second)
}
