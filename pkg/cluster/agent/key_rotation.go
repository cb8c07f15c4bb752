// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// keyRotation changes the node's own key on request. mesh.Rotation decides the steps.
type keyRotation struct {
	keys        *keyring
	probe       *keyProber // of the next key; nil: no peer was probed yet
	announcedAt time.Time  // when the cluster was first seen to have the next key; zero: not yet
}

// rotationTimeout is how long a peer that does not accept the next key may delay the change.
const rotationTimeout = 10 * time.Minute

// stepRotation does the next step of a key change, if one is in progress. It returns the delay before the step after that.
func (m *meshReconciler) stepRotation(in reconcileInput) (wait time.Duration, note string, err error) {
	limits := mesh.RotationLimits{Propagation: m.cfg.Propagation, Timeout: rotationTimeout}
	for {
		r, err := m.rotationState(in)
		if err != nil {
			return 0, "", err
		}
		switch step := r.Step(limits); step {
		case mesh.RotationGenerate:
			if err := m.keys.prepare(r.Requested); err != nil {
				return 0, "", err
			}
			m.announcedAt, m.probe = time.Time{}, nil
			m.cfg.Log.Info("next private key of this node generated, publishing its public key before the change", "generation", m.keys.next.number, "public_key", m.keys.next.public())
			continue
		case mesh.RotationWait:
			wait = max(limits.Propagation-r.Announced, time.Second)
			return wait, fmt.Sprintf("waiting for peers to accept the next key (generation %d)", r.Next), nil
		case mesh.RotationSwitch:
			if m.probe != nil && time.Since(m.probe.lastSentAt) < probeSettleTime {
				return probeSettleTime, "", nil
			}
			return 0, "", m.switchKey()
		default: // RotationAnnounce, too: reconcile publishes the next key in its status
			return 0, "", nil
		}
	}
}

// rotationState returns the progress of a key change. Once the key has had time to propagate, it probes the peers.
func (m *meshReconciler) rotationState(in reconcileInput) (mesh.Rotation, error) {
	r := mesh.Rotation{
		Requested: in.spec.KeyGeneration, Current: m.keys.current.number, Next: m.keys.next.number, Announced: -1,
	}
	if r.Next == 0 || in.lastStatus.NextPublicKey != publicKeyOf(m.keys.next) {
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
		r.Unconfirmed, err = m.probe.countUnconfirmed(m.nodePeers(m.engine.Status().Peers))
	}
	return r, err
}

// switchKey replaces the current key by the next one. Deleting the old key comes first: a node that has used a key must never go
// back to the one before.
func (m *meshReconciler) switchKey() error {
	if err := m.keys.advance(); err != nil {
		return err
	}
	m.announcedAt, m.probe = time.Time{}, nil
	return m.ensureKey()
}

// ensureKey configures the current key if the engine has a different one: the engine must answer to the published key. Peers are
// added anew, because sessions made with a different key do not carry over. A handshake with each peer follows: it makes the peer
// move this node's allowed IPs to the new key.
func (m *meshReconciler) ensureKey() error {
	st := m.engine.Status()
	if st.PublicKey == m.keys.current.public() {
		return nil
	}
	m.handshakes.stop() // its peers are about to be replaced
	c := config.Device{PrivateKey: &m.keys.current.key, ReplacePeers: true, Peers: m.peersAsConfigured(st)}
	if err := m.engine.Configure(c); err != nil {
		return fmt.Errorf("changing the key of the tunnel %s: %w", m.cfg.Tunnel, err)
	}
	m.handshakes = triggerHandshakes(m.engine, byLastHandshake(m.nodePeers(st.Peers)), m.keepalive, m.cfg.Log)
	m.cfg.Log.Info("private key of this node changed, starting handshakes with all nodes", "generation", m.keys.current.number, "public_key", m.keys.current.public())
	return nil
}

// peersAsConfigured returns the configuration that adds all peers of an engine again. The handshakes that follow set the keepalive of nodes.
func (m *meshReconciler) peersAsConfigured(st config.Status) (peers []config.Peer) {
	for i := range st.Peers {
		old := &st.Peers[i]
		p := config.Peer{PublicKey: old.PublicKey, PresharedKey: &old.PresharedKey}
		if old.Endpoint.AddrPort.IsValid() {
			p.Endpoint, p.EndpointName = &old.Endpoint, old.EndpointName
		}
		if m.configured[old.PublicKey] {
			p.Name, p.Keepalive = &old.Name, &old.Keepalive
		}
		for _, a := range old.AllowedIPs {
			p.AllowedIPs = append(p.AllowedIPs, config.AllowedIP{Prefix: a})
		}
		peers = append(peers, p)
	}
	return peers
}
