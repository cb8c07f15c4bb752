// SPDX-License-Identifier: Apache-2.0

package device

import (
	"bytes"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// Rekey implements engine.SlowPath.
func (p *Peer) Rekey() {
	now, last := p.dev.clock(), p.lastRekey.Load()
	if last == 0 || now-last >= rekeyPause {
		p.lastRekey.Store(now)
		p.post(taskHandshake)
	}
}

// Confirm implements engine.SlowPath. It lets lanes send with the key pair at once if it can. The host may answer before a worker runs,
// and a restarted peer may have lost the previous session. A worker does the rest. It also sends the packets that are staged: until then
// there is no current session, and answers are staged behind them.
func (p *Peer) Confirm(keys *session.Keypair) {
	if p.engine.Current.Load() == keys { // a worker has not run since the last call
		return
	}
	if p.sessions.confirm(keys) {
		p.post(taskConfirm)
	}
}

// Roam implements engine.SlowPath: an authenticated message came from the endpoint from.
func (p *Peer) Roam(from underlay.Endpoint) { p.location.move(from) }

// Hello implements engine.SlowPath.
func (p *Peer) Hello(plain []byte, from underlay.Endpoint) drop.Reason {
	if wire.IsProbe(plain) {
		return p.probing.accept(plain)
	}
	return p.hello.accept(plain, from)
}

// OnHeard implements engine.SlowPath.
func (p *Peer) OnHeard() {
	p.noteChange()
	p.post(taskHello)
}

// rekeyPause is the minimum time, in ns, between two rekey requests that reach a worker. Lanes request a due rekey with every
// train until it is done.
const rekeyPause = int64(50 * time.Millisecond)

// Stage implements engine.SlowPath. It decides, and hands the train over, under the lock of staged trains alone. So a handshake with the peer delays
// no lane.
func (p *Peer) Stage(train []byte, packets int) *session.Keypair {
	keys, why := p.staged.stageable()
	if keys == nil && why == drop.None {
		keys, why = p.staged.add(&stagedTrain{peer: p, bytes: bytes.Clone(train), packets: packets})
	}
	switch {
	case keys != nil:
		return keys
	case why == drop.None:
		p.post(taskHandshake)
	default:
		p.dropForPeer(why, packets)
	}
	return nil
}

// TooBig implements engine.SlowPath: the host refused a packet of that size. The network device's MTU has shrunk, there is another route, or
// IPsec needs room.
func (p *Peer) TooBig(size int) {
	storeMin(&p.mtu.refused, uint64(size))
	p.requestRoute()
}

// ProbeDue implements engine.SlowPath.
func (p *Peer) ProbeDue() { p.post(taskProbe) }

// ExchangePart implements engine.SlowPath: it copies the part.
func (p *Peer) ExchangePart(plain []byte, keys *session.Keypair) drop.Reason {
	why := p.quantum.machine.Load().Put(plain, keys, p.dev.clock())
	if why == drop.None {
		p.postExchange()
	}
	return why
}

// SendBufferFull implements engine.SlowPath. Only the first call for each port has an effect.
func (p *Peer) SendBufferFull() {
	if !p.spread.grouped.Load() && p.spread.grouped.CompareAndSwap(false, true) {
		p.post(taskSendGroup)
	}
}

// Wake implements peer.Waker: traffic has started a timer for which the peer's timer is not set.
func (p *Peer) Wake() { p.post(taskTimer) }
