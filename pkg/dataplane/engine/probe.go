// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"errors"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// errNotSent is the error of SendProbe without an endpoint, a port or a session.
var errNotSent = errors.New("the probe was not sent")

// SendProbe sends p a path MTU probe (wire.AppendProbe) under keys, padded with zeros to size bytes of plaintext, from the
// given source of the port. No host and no router fragments it. The error is underlay.ErrTooBig if the network device is too small
// for it. The timers expect no answer to it.
func (e *Engine) SendProbe(p *Peer, keys *session.Keypair, source int, probe []byte, size int) error {
	e.slow.mu.Lock()
	defer e.slow.mu.Unlock()
	t := e.slow.transmitter(e)
	to, conn := p.Endpoint.Load(), e.slow.lane.conn.Load()
	if to == nil || conn == nil {
		return errNotSent
	}
	if size < len(probe) || size > underlay.MaxDatagramRun-wire.DataOverhead {
		return underlay.ErrTooBig
	}
	msg := t.slots[0][:wire.DataOverhead+size]
	clear(msg)
	copy(msg[wire.DataHeaderLen:], probe)
	counter, ok := keys.Reserve(1)
	if !ok || !keys.SealEach(&t.scratch, [][]byte{msg}, counter) {
		t.lane.stats.txControl.Add(1)
		t.dropForPeer(p, drop.TXNoSession, 1)
		return errNotSent
	}
	return t.sendProbe(p, keys, *conn, &underlay.Run{
		To: to, Parts: [][]byte{msg}, SegSize: len(msg), Segments: 1, Source: source, DontFragment: true,
	})
}

// sendProbe sends a sealed probe and counts it. A size that the network device refuses was asked for, so it is no drop.
func (t *transmitter) sendProbe(p *Peer, keys *session.Keypair, conn underlay.Lane, r *underlay.Run) error {
	runs := [1]underlay.Run{*r}
	conn.Send(runs[:])
	err := runs[0].Err
	if errors.Is(err, underlay.ErrTooBig) {
		return err
	}
	t.lane.stats.txControl.Add(1)
	if err != nil {
		t.dropForPeer(p, sendDropReason(err), 1)
		return err
	}
	m := &runMeta{peer: p, keys: keys, segments: r.Segments, bytes: r.SegSize}
	p.sent(t.now, m)
	t.countSent([]*runMeta{m})
	return nil
}
