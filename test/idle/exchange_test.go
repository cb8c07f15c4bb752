// SPDX-License-Identifier: Apache-2.0

package idle

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/peer"
	"github.com/ropewalk/ropewalk/pkg/protocol/postquantum"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// upgradePause is that of package pqexchange: a device drops initiations that follow within 20 ms.
const upgradePause = 25 * time.Millisecond

// exchanger is the part of a fleetPeer in post-quantum exchanges.
type exchanger struct {
	x        postquantum.Exchange
	sessions [2]fleetSession // the newest first
	upgrade  time.Time       // when a handshake that names a key is due; zero: never
	took     time.Duration   // until it had a session with a key; 0: it has none
	asked    time.Time       // when the last hello left
}

// fleetSession is a session of a fleetPeer. The zero fleetSession is none.
type fleetSession struct {
	pair     *session.Keypair
	exchange *postquantum.Session
	begun    bool // both ends have it
}

// scratch is that of all fleets, which are used by one goroutine.
var scratch session.Scratch

// ropewalks makes the peers send hellos, and take part in exchanges if exchanges says so.
func (f *fleet) ropewalks(device noise.PublicKey, exchanges bool) {
	f.exchanges = exchanges
	for _, p := range f.peers {
		p.exchanger = &exchanger{}
		p.exchanger.x.SetIdentity(p.public, device)
	}
}

// restarted follows that the device was restarted: it knows nothing of the sessions. The peer keeps its keys.
func (e *exchanger) restarted() {
	e.x.End()
	e.sessions, e.upgrade, e.took = [2]fleetSession{}, time.Time{}, 0
	e.x.SetOffers(postquantum.OffersUnknown)
}

// mark marks an initiation as a ropewalk's, with the key that it names.
func (e *exchanger) mark(t noise.Timestamp) (noise.Timestamp, postquantum.Key) {
	if id, ok := e.x.Ring.Signal(); ok {
		return t.Naming(id), postquantum.Key{ID: id, Named: true}
	}
	return t.Signed(), postquantum.Key{}
}

// named returns the key that an initiation names, if the peer has it, and the preshared key of the session.
func (e *exchanger) named(t noise.Timestamp) (noise.PresharedKey, postquantum.Key) {
	if id, ok := t.Named(); ok {
		if psk, ok := e.x.Ring.Effective(id, new(noise.PresharedKey)); ok {
			return psk, postquantum.Key{ID: id, Named: true}
		}
	}
	return noise.PresharedKey{}, postquantum.Key{}
}

// add adds a session.
func (e *exchanger) add(pair *session.Keypair, keys *noise.Keys, key postquantum.Key) *fleetSession {
	if key.Named {
		e.x.Ring.Use(key.ID)
	}
	s := postquantum.NewSession(keys, key)
	e.sessions = [2]fleetSession{{pair: pair, exchange: &s}, e.sessions[0]}
	return &e.sessions[0]
}

// established follows that a response has arrived. A device that has lost the key that was named takes the peer for a stock one until it hears a hello.
func (f *fleet) established(p *fleetPeer, pair *session.Keypair, keys *noise.Keys) error {
	key := postquantum.Key{ID: p.named.ID, Named: keys.Preshared == 1}
	s := p.exchanger.add(pair, keys, key)
	f.begin(p, s)
	if p.named.Named && !key.Named {
		return f.seal(p, s, f.hello(p, false))
	}
	return nil
}

// begin follows that both ends have the session.
func (f *fleet) begin(p *fleetPeer, s *fleetSession) {
	e := p.exchanger
	if s.begun {
		return
	}
	s.begun = true
	e.x.Begin(s.exchange, f.now())
	if s.exchange.Key().Named && e.took == 0 {
		e.took = time.Since(f.began)
		f.unkeyed--
	}
}

// data handles a data message.
func (f *fleet) data(p *fleetPeer, msg []byte) error {
	e := p.exchanger
	out := make([]session.Message, 1)
	for i := range e.sessions {
		s := &e.sessions[i]
		if s.pair == nil || s.pair.Local() != wire.ReceiverIndex(msg) {
			continue
		}
		if s.pair.OpenTrain(&scratch, 0, msg, len(msg), out); out[0].Drop != drop.None {
			return nil
		}
		f.connected(p) // a message of the device before the restart does not open
		first := !s.begun
		f.begin(p, s)
		if first { // the responder asks
			if err := f.seal(p, s, f.hello(p, false)); err != nil {
				return err
			}
		}
		return f.control(p, s, out[0].Padded)
	}
	return nil
}

// hello returns the peer's hello.
func (f *fleet) hello(p *fleetPeer, noReply bool) []byte {
	p.exchanger.asked = time.Now()
	_, port, _ := net.SplitHostPort(f.conn.LocalAddr().String())
	own := netip.MustParseAddrPort(netip.AddrFrom4(p.addr()).String() + ":" + port)
	return wire.AppendHello(nil, &wire.Hello{PostQuantum: f.exchanges, NoReply: noReply, Own: own, Peer: f.device})
}

// control handles the plaintext of a data message.
func (f *fleet) control(p *fleetPeer, s *fleetSession, plain []byte) error {
	e := p.exchanger
	var h wire.Hello
	var part wire.KEMPart
	switch {
	case wire.IsHello(plain) && wire.ParseHello(plain, &h) == nil:
		offers := postquantum.OffersNone
		if h.PostQuantum {
			offers = postquantum.OffersExchange
		}
		e.x.SetOffers(offers)
		if !h.NoReply {
			if err := f.seal(p, s, f.hello(p, true)); err != nil {
				return err
			}
		}
		a, err := e.x.Offer(rand.Reader, f.now())
		return errors.Join(err, f.act(p, a))
	case wire.IsKEMPart(plain) && wire.ParseKEMPart(plain, &part) == nil:
		return f.act(p, e.x.Receive(s.exchange, &part, f.now()))
	}
	return nil
}

// act does what an exchange asks for.
func (f *fleet) act(p *fleetPeer, a postquantum.Actions) error {
	e := p.exchanger
	if a.Upgrade {
		e.upgrade = time.Now().Add(upgradePause)
	}
	for i := range e.sessions {
		if s := &e.sessions[i]; a.Send != 0 && s.exchange == a.Session {
			for part := range wire.KEMParts {
				if err := f.seal(p, s, wire.AppendKEMPart(nil, a.Send, e.x.Message(), part)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// tick does what is due.
func (f *fleet) tick(p *fleetPeer, now time.Time) error {
	e := p.exchanger
	var err error
	if at := e.x.Next(); at != 0 && at <= f.now() {
		err = f.act(p, e.x.Fire(f.now()))
	}
	if s := &e.sessions[0]; s.begun && e.x.Offers() == postquantum.OffersUnknown && now.Sub(e.asked) >= time.Second { // a hello may be lost
		err = errors.Join(err, f.seal(p, s, f.hello(p, false)))
	}
	if e.took == 0 && !e.upgrade.IsZero() && !now.Before(e.upgrade) {
		e.upgrade = now.Add(time.Duration(peer.RekeyTimeout))
		err = errors.Join(err, p.create(f.now()), f.sendInitiation(p))
	}
	return err
}

// seal sends a data message.
func (f *fleet) seal(p *fleetPeer, s *fleetSession, plain []byte) error {
	l := session.NewLayout(1, len(plain), len(plain), 1420)
	msg := make([]byte, l.Size())
	copy(msg[wire.DataHeaderLen:], plain)
	first, ok := s.pair.Reserve(1)
	if !ok || s.pair.SealTrain(&scratch, msg, l, first) != l.Size() {
		return fmt.Errorf("peer %d cannot seal", p.index)
	}
	return f.send(p, msg)
}
