// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// rotator changes the node's own key on request.
type rotator struct {
	keys      *keyring
	probe     *prober   // of the next key; nil: nobody was asked yet
	announced time.Time // when the cluster was first seen to have the next key; zero: not yet
}

// rotationPatience is how long a peer may keep a node from changing its key.
const rotationPatience = 10 * time.Minute

// rotate does the next step of a change of the node's key, if there is one, and returns how long to wait for the step after.
func (m *mesher) rotate(l look) (wait time.Duration, note string, err error) {
	limits := mesh.RotationLimits{Learn: m.cfg.Learn, Patience: rotationPatience}
	for {
		r, err := m.rotation(l)
		if err != nil {
			return 0, "", err
		}
		switch step := r.Step(limits); step {
		case mesh.RotationMake:
			if err := m.keys.prepare(r.Asked); err != nil {
				return 0, "", err
			}
			m.announced, m.probe = time.Time{}, nil
			m.cfg.Log.Info("the next key is made", "generation", m.keys.next.number, "key", m.keys.next.public())
			continue
		case mesh.RotationAwait:
			wait = max(limits.Learn-r.Announced, time.Second)
			return wait, fmt.Sprintf("the key of generation %d takes over once others accept it", r.Next), nil
		case mesh.RotationSwitch:
			if m.probe != nil && time.Since(m.probe.last) < afterProbe {
				return afterProbe, "", nil
			}
			return 0, "", m.switchKey()
		default:
			return 0, "", nil
		}
	}
}

// rotation is how far it is. Peers are asked once they have had the time to learn the key.
func (m *mesher) rotation(l look) (mesh.Rotation, error) {
	r := mesh.Rotation{Asked: l.spec.KeyGeneration, Current: m.keys.current.number, Next: m.keys.next.number, Announced: -1}
	if r.Next == 0 || l.told.NextPublicKey != keyOf(m.keys.next) {
		return r, nil
	}
	if m.announced.IsZero() {
		m.announced = time.Now()
	}
	r.Announced = time.Since(m.announced)
	if r.Announced < m.cfg.Learn {
		return r, nil
	}
	var err error
	if m.probe == nil {
		m.probe, err = newProber(m.keys.next.key)
	}
	if err == nil {
		r.Waiting, err = m.probe.waiting(m.engine.Status())
	}
	return r, err
}

// switchKey makes the next key the one, and has the device shake hands with all peers, which move to it what is for this
// node as soon as that has happened. Peers are added anew: to WireGuard, this is another node, whose last handshakes were not
// these.
func (m *mesher) switchKey() error {
	if err := m.keys.advance(); err != nil { // first: a node that used a key never goes back to the one before
		return err
	}
	m.announced, m.probe = time.Time{}, nil
	return m.useKey()
}

// useKey has the engine use the key in use, if it does not: what others are told is what it must answer to.
func (m *mesher) useKey() error {
	st := m.engine.Status()
	if st.PublicKey == m.keys.current.public() {
		return nil
	}
	m.nudging.stop() // of peers that go
	c := config.Device{PrivateKey: &m.keys.current.key, ReplacePeers: true, Peers: anew(st)}
	if err := m.engine.Configure(c); err != nil {
		return fmt.Errorf("changing the key of the tunnel %s: %w", m.cfg.Tunnel, err)
	}
	m.nudging = nudge(m.engine, inTurn(st.Peers), m.cfg.Log)
	m.cfg.Log.Info("the key is changed", "generation", m.keys.current.number, "key", m.keys.current.public())
	return nil
}

// anew are all peers as they are.
func anew(st config.Status) (peers []config.Peer) {
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

// handoverShare is how many times longer than a look at the device the pause is at least: there may be thousands of peers.
const handoverShare = 20

// handover moves a node's allowed IPs to its next key once the node has used that for a handshake.
type handover struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// follow begins with the peers of a plan, if any key of theirs changes. Until unfollow, the handovers are its own.
func (m *mesher) follow(peers []mesh.Peer) {
	if m.handovers.Every(time.Now(), peers) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	h := &handover{cancel: cancel, done: make(chan struct{})}
	m.handover = h
	engine := m.engine
	go func() {
		defer close(h.done)
		for took := time.Duration(0); ; {
			every := m.handovers.Every(time.Now(), peers)
			if every == 0 {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-engine.Done():
				return
			case <-time.After(max(every, handoverShare*took)):
			}
			began := time.Now()
			if moves := mesh.Moves(peers, engine.Status().Peers); len(moves) > 0 {
				err := engine.Configure(config.Device{Peers: moves})
				m.moved(len(moves), err)
			}
			took = time.Since(began)
		}
	}()
}

// unfollow ends it.
func (m *mesher) unfollow() {
	if m.handover != nil {
		m.handover.cancel()
		<-m.handover.done
		m.handover = nil
	}
}

func (m *mesher) moved(n int, err error) {
	if err != nil {
		m.cfg.Log.Warn("what is for a peer stays with its old key", "error", err)
		return
	}
	m.cfg.Log.Info("a peer has changed its key", "changes", n)
}
