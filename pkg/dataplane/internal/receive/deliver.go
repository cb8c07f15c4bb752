// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/receive/order"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// Deliver passes on the decrypted messages of one run, part of e; it implements Sink.
func (r *Receiver) Deliver(s *lane.Session, keys *session.Keypair, opened []session.Message, checksumOK uint64, e *order.Origin) {
	if len(opened) == 0 {
		return
	}
	r.observed = r.lane.RxFlows.Take()
	authentic, refused, rejected, data, control := 0, 0, 0, false, false
	for i := range opened {
		m := &opened[i]
		if m.Drop != drop.None {
			r.drop(m.Drop, 1)
			refused++
			continue
		}
		authentic += len(m.Padded) + wire.DataOverhead
		switch {
		case len(m.Padded) == 0:
		case wire.IsControl(m.Padded):
			control = true
			if !r.deliverControl(m.Padded, s.Peer, keys, e) {
				rejected++
			}
		case keys.Restricted():
			data = true // which wants a keepalive all the same: without, the peer would start one handshake after the other
			r.drop(drop.RXNotPostQuantum, 1)
			rejected++
		default:
			data = true
			if !r.deliverPacket(m.Padded, s.Peer, e, checksumOK>>i&1 != 0) {
				rejected++
			}
		}
	}
	r.lane.RxFlows.Put(r.observed)
	r.observed = nil // the lane may be idle for long, and the table has addresses of users
	count := s.Peer.TrafficOf(r.lane.Index)
	if refused+rejected > 0 {
		count.RxDrops.Add(uint64(refused + rejected))
	}
	if authentic > 0 {
		count.Rx.Add(uint64(authentic))
		count.RxPackets.Add(uint64(len(opened) - refused))
		received(s.Peer, r.now, keys, len(opened)-refused, data, control, e)
	}
}

// deliverControl passes one decrypted control message of p, which arrived in e, to the slow path, or drops it.
func (r *Receiver) deliverControl(plain []byte, p *lane.Peer, keys *session.Keypair, e *order.Origin) bool {
	if wire.IsHello(plain) {
		keys.AgreeStreams(wire.AnnouncesOrder(plain))
	}
	var why drop.Reason
	if wire.IsKEMPart(plain) {
		why = p.SlowPath.ExchangePart(plain, keys)
	} else {
		why = p.SlowPath.Hello(plain, e.From)
	}
	if why != drop.None {
		r.drop(why, 1)
		return false
	}
	r.lane.Stats.RxControl.Add(1)
	return true
}

// deliverPacket checks one decrypted packet of p, which arrived in e, and passes it to the merger, or drops it.
func (r *Receiver) deliverPacket(plain []byte, p *lane.Peer, e *order.Origin, checksumOK bool) bool {
	n, ok := packet.Length(plain)
	if !ok {
		r.drop(drop.RXInnerMalformed, 1)
		return false
	}
	plain = plain[:n]
	if r.routes.Lookup(&r.lane.Shared.Routes, packet.Source(plain)) != p {
		r.drop(drop.RXInnerSpoofed, 1)
		return false
	}
	delivered := r.mark(plain, e)
	if r.observed != nil {
		r.noteFlow(plain, p, e, delivered)
	}
	if !delivered {
		r.drop(drop.RXCongestion, 1)
		return false
	}
	r.packets++
	if lane.IsDatagram(plain) {
		r.load.Datagrams++
	}
	r.bytes += n
	r.merged += n
	if checksumOK {
		r.merger.AddVerified(plain)
	} else {
		r.merger.Add(plain)
	}
	return true
}

// mark copies a congestion mark of the outer header to a packet (RFC 6040, section 4.2), or sets
// this host's own. A packet that cannot carry the mark of the outer header stays as it is, as in
// the in-kernel WireGuard. If a packet cannot carry this host's own mark, mark returns false and
// the packet must be dropped instead. Its outer header announced ECN although the packet has
// none.
func (r *Receiver) mark(plain []byte, e *order.Origin) bool {
	switch {
	case !e.Mark && e.ECN != packet.CE:
		return true
	case packet.ECNOf(plain) == packet.NotECT:
		return !e.Mark
	case e.Mark:
		r.marks++
	}
	packet.SetCE(plain)
	return true
}

// received updates endpoint, session and timers after authentic messages under keys. A control message (wire.IsControl) may come from
// a source port that is not known yet, and the hello names the endpoint explicitly. So they do not update the endpoint here.
func received(p *lane.Peer, now int64, keys *session.Keypair, messages int, data, control bool, e *order.Origin) {
	noteSource(p, keys, e, messages, !control && !e.Waited)
	if p.Unconfirmed.Load() == keys {
		p.SlowPath.Confirm(keys)
	}
	p.Activity.Received(now, data)
	if lane.RekeyDue(keys, now, true) {
		p.SlowPath.Rekey()
	}
}

// noteSource counts authentic messages in e by their source port, and updates the endpoint if
// roam is set. Elements of different flows are not handled in the order of their arrival. So only
// the newest message of the session moves the endpoint, and an older message does not move it
// back.
func noteSource(p *lane.Peer, keys *session.Keypair, e *order.Origin, messages int, roam bool) {
	to := p.Endpoint.Load()
	if to == nil {
		if roam {
			p.SlowPath.Roam(e.From)
		}
		return
	}
	at, gathered := listenEndpoint(p, to, e.From)
	if gathered {
		p.CountPort(e.From.Dst.Port(), messages)
	}
	if !roam {
		return
	}
	if gathered {
		p.MarkHeard()
	}
	if *to != at && keys.Newest(e.Newest) {
		p.SlowPath.Roam(at)
	}
}

// listenEndpoint returns the endpoint of a peer that has sent from the endpoint from. gathered
// reports that it came from one of the peer's spread source ports. The listen port is then the
// port of known, if the peer has not moved. A NAT at a new address may map it to any other. There
// the peer is reached at the port that it has sent from, until a hello names its listen port.
func listenEndpoint(p *lane.Peer, known *underlay.Endpoint, from underlay.Endpoint) (at underlay.Endpoint, gathered bool) {
	if *known == from {
		return from, false
	}
	ports := p.Gathered.Load()
	if ports == nil || !ports.Contains(from.Dst.Port()) {
		return from, false
	}
	if from.Dst.Addr() == known.Dst.Addr() || !p.SendsHellos.Load() {
		from.Dst = netip.AddrPortFrom(from.Dst.Addr(), known.Dst.Port())
	}
	return from, true
}
