// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// keyRotation changes the node's own key on request.
type keyRotation struct {
	keys        *keyring
	probe       *keyProber // of the next key; nil: nobody was asked yet
	announcedAt time.Time  // when the cluster was first seen to have the next key; zero: not yet
}

// rotationTimeout is how long a peer may keep a node from changing its key.
const rotationTimeout = 10 * time.Minute

// stepRotation does the next step of a change of the node's key, if there is one, and returns how long to wait for the step after.
func (m *meshReconciler) stepRotation(l reconcileInput) (wait time.Duration, note string, err error) {
	limits := mesh.RotationLimits{Propagation: m.cfg.Propagation, Timeout: rotationTimeout}
	for {
		r, err := m.rotationState(l)
		if err != nil {
			return 0, "", err
		}
		switch step := r.Step(limits); step {
		case mesh.RotationGenerate:
			if err := m.keys.prepare(r.Requested); err != nil {
				return 0, "", err
			}
			m.announcedAt, m.probe = time.Time{}, nil
			m.cfg.Log.Info("the next key is made", "generation", m.keys.next.number, "key", m.keys.next.public())
			continue
		case mesh.RotationWait:
			wait = max(limits.Propagation-r.Announced, time.Second)
			return wait, fmt.Sprintf("the key of generation %d takes over once others accept it", r.Next), nil
		case mesh.RotationSwitch:
			if m.probe != nil && time.Since(m.probe.lastSentAt) < probeSettleTime {
				return probeSettleTime, "", nil
			}
			return 0, "", m.switchKey()
		default:
			return 0, "", nil
		}
	}
}

// rotationState is how far it is. Peers are asked once they have had the time to learn the key.
func (m *meshReconciler) rotationState(l reconcileInput) (mesh.Rotation, error) {
	r := mesh.Rotation{Requested: l.spec.KeyGeneration, Current: m.keys.current.number, Next: m.keys.next.number, Announced: -1}
	if r.Next == 0 || l.lastStatus.NextPublicKey != publicKeyOf(m.keys.next) {
		return r, nil
	}
	if m.announcedAt.IsZero() {
		m.announcedAt = time.Now()
	}
	r.Announced = time.Since(m.announcedAt)
	if r.Announced < m.cfg.Propagation {
		return r, nil
	}
	var err error
	if m.probe == nil {
		m.probe, err = newProber(m.keys.next.key)
	}
	if err == nil {
		r.Unconfirmed, err = m.probe.countUnconfirmed(m.engine.Status())
	}
	return r, err
}

// switchKey makes the next key the one, and has the device shake hands with all peers, which move to it what is for this
// node as soon as that has happened. Peers are added anew: to WireGuard, this is another node, whose last handshakes were not
// these.
func (m *meshReconciler) switchKey() error {
	if err := m.keys.advance(); err != nil { // first: a node that used a key never goes back to the one before
		return err
	}
	m.announcedAt, m.probe = time.Time{}, nil
	return m.ensureKey()
}

// ensureKey has the engine use the key in use, if it does not: what others are told is what it must answer to.
func (m *meshReconciler) ensureKey() error {
	st := m.engine.Status()
	if st.PublicKey == m.keys.current.public() {
		return nil
	}
	m.handshakes.stop() // of peers that go
	c := config.Device{PrivateKey: &m.keys.current.key, ReplacePeers: true, Peers: peersAsConfigured(st)}
	if err := m.engine.Configure(c); err != nil {
		return fmt.Errorf("changing the key of the tunnel %s: %w", m.cfg.Tunnel, err)
	}
	m.handshakes = triggerHandshakes(m.engine, byLastHandshake(st.Peers), m.cfg.Log)
	m.cfg.Log.Info("the key is changed", "generation", m.keys.current.number, "key", m.keys.current.public())
	return nil
}

// peersAsConfigured are all peers as they are.
func peersAsConfigured(st config.Status) (peers []config.Peer) {
	for i := range st.Peers {
		was := &st.Peers[i]
		p := config.Peer{PublicKey: was.PublicKey, PresharedKey: &was.PresharedKey}
		if was.Endpoint.AddrPort.IsValid() {
			p.Endpoint = &was.Endpoint
		}
		for _, a := range was.AllowedIPs {
			p.AllowedIPs = append(p.AllowedIPs, config.AllowedIP{Prefix: a})
		}
		peers = append(peers, p)
	}
	return peers
}

// handoverIdleFactor is how many times longer than a look at the device the pause is at least: there may be thousands of peers.
const handoverIdleFactor = 20

// handover moves a node's allowed IPs to its next key once the node has used that for a handshake.
type handover struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// startHandover begins with the peers of a plan, if any key of theirs changes. Until unfollow, the handovers are its own.
func (m *meshReconciler) startHandover(peers []mesh.Peer) {
	if m.handovers.Interval(time.Now(), peers) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h := &handover{cancel: cancel, done: make(chan struct{})}
	m.handover = h
	engine := m.engine
	go func() {
		defer close(h.done)
		for took := time.Duration(0); ; {
			every := m.handovers.Interval(time.Now(), peers)
			if every == 0 {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-engine.Done():
				return
			case <-time.After(max(every, handoverIdleFactor*took)):
			}
			began := time.Now()
			if moves := mesh.AllowedIPMoves(peers, engine.Status().Peers); len(moves) > 0 {
				err := engine.Configure(config.Device{Peers: moves})
				m.logMoves(len(moves), err)
			}
			took = time.Since(began)
		}
	}()
}

// stopHandover ends it.
func (m *meshReconciler) stopHandover() {
	if m.handover != nil {
		m.handover.cancel()
		<-m.handover.done
		m.handover = nil
	}
}

func (m *meshReconciler) logMoves(n int, err error) {
	if err != nil {
		m.cfg.Log.Warn("what is for a peer stays with its old key", "error", err)
		return
	}
	m.cfg.Log.Info("a peer has changed its key", "changes", n)
}
