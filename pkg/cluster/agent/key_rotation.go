// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
)

// keyRotation changes the node's own key on request. mesh.Rotation decides the steps.
type keyRotation struct {
	keys        *keyring
	announcedAt time.Time // when the cluster was first seen to have the next key; zero: not yet
}

// stepRotation does the next step of a key change, if one is in progress. It returns the delay before the step after that.
func (m *meshReconciler) stepRotation(in reconcileInput) (wait time.Duration, note string, err error) {
	for {
		r := m.rotationState(in)
		switch step := r.Step(m.cfg.Propagation); step {
		case mesh.RotationGenerate:
			if err := m.keys.prepare(r.Requested); err != nil {
				return 0, "", err
			}
			m.announcedAt = time.Time{}
			m.cfg.Log.Info("next private key of this node generated, publishing its public key before the change", "generation", m.keys.next.number, "public_key", m.keys.next.public())
			continue
		case mesh.RotationWait:
			wait = max(m.cfg.Propagation-r.Announced, time.Second)
			return wait, fmt.Sprintf("waiting for peers to learn the next key (generation %d)", r.Next), nil
		case mesh.RotationSwitch:
			return 0, "", m.switchKey()
		default: // also RotationAnnounce: reconcile publishes the next key in its status
			return 0, "", nil
		}
	}
}

// rotationState returns the progress of a key change.
func (m *meshReconciler) rotationState(in reconcileInput) mesh.Rotation {
	r := mesh.Rotation{
		Requested: in.spec.KeyGeneration, Current: m.keys.current.number, Next: m.keys.next.number, Announced: -1,
	}
	if r.Next == 0 || in.announced.NextPublicKey != publicKeyOf(m.keys.next) {
		return r
	}
	if m.announcedAt.IsZero() {
		m.announcedAt = time.Now()
	}
	r.Announced = time.Since(m.announcedAt)
	return r
}

// switchKey replaces the current key by the next one. Deleting the old key comes first: a node that has used a key must never go
// back to the one before.
func (m *meshReconciler) switchKey() error {
	if err := m.keys.advance(); err != nil {
		return err
	}
	m.announcedAt = time.Time{}
	_, err := m.apply(m.lastDesired)
	return err
}
