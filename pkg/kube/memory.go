// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/kube/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/mesh"
)

// persistedState is what a node's agent keeps beside the key, for the time between its end, or a reboot, and the first word of the
// API: what administrators asked for, which the loss of a RopewalkNode does not take back, what goes into the tunnel, which
// nothing may leave in the clear of, and the tunnel itself. None of it is secret.
type persistedState struct {
	Node    types.UID         `json:"node"` // of which all is
	Name    string            `json:"name,omitempty"`
	Mode    mesh.Mode         `json:"mode"`
	Spec    v1alpha1.NodeSpec `json:"spec"`
	Routing *Routing          `json:"routing,omitempty"` // in mesh mode
	Tunnel  *savedTunnel      `json:"tunnel,omitempty"`  // in mesh mode
}

// saved is what the tunnel was like.
type savedTunnel struct {
	Addrs []netip.Addr   `json:"addrs,omitempty"` // the node's own
	Pods  []netip.Prefix `json:"pods,omitempty"`  // the node's own
	// Peers tell who has which key besides, which outlives agents, too: else a node could claim another's key while all restart.
	Peers []mesh.Peer `json:"peers,omitempty"`
}

// stateFile is its file in the directory of keys.
const stateFile = "agent.json"

// maxStateFile bounds what is read of it: 5,000 nodes are one megabyte.
const maxStateFile = 64 << 20

// update returns what was kept. None that there is, and none that can be read, is an empty one.
func loadPersistedState(dir string) (m persistedState, err error) {
	f, err := os.Open(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("reading what was kept: %w", err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxStateFile)).Decode(&m); err != nil {
		return persistedState{}, fmt.Errorf("reading what was kept: %w", err)
	}
	return m, nil
}

// save makes the file be of m, whole or not at all.
func (m *persistedState) save(dir string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return writeFileAtomically(dir, stateFile+".*", text, func(from string) error { return os.Rename(from, filepath.Join(dir, stateFile)) })
}

// removeTemporaryFiles removes what a crash has left of a file in the making.
func removeTemporaryFiles(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, stateFile+".*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

// savePersisted keeps m if it is new, or could not be kept before.
func (a *Agent) savePersisted(m persistedState) {
	if !a.saveFailed && reflect.DeepEqual(a.persisted, m) {
		return
	}
	err := m.save(a.cfg.KeyDir)
	if err != nil && !a.saveFailed {
		a.cfg.Log.Warn("what administrators ask for is forgotten with this process", "error", err)
	}
	a.persisted, a.saveFailed = m, err != nil
}

// specOf is what administrators ask for. A RopewalkNode that is gone, or that nobody but its agent has written since, asks
// for nothing else than the one before it.
func (a *Agent) specOf(n *node, rn *v1alpha1.RopewalkNode) v1alpha1.NodeSpec {
	if hasUntouchedSpec(rn) && a.persisted.Node == n.UID {
		return a.persisted.Spec
	}
	return rn.Spec
}

// restorePersisted drops what is not to leave in the clear, and carries what goes into the tunnel, before the API has said anything.
func (a *Agent) restorePersisted() {
	removeTemporaryFiles(a.cfg.KeyDir)
	m, err := loadPersistedState(a.cfg.KeyDir)
	if err != nil {
		a.cfg.Log.Warn("what administrators asked for is found out anew", "error", err)
	}
	if m.Name != "" && m.Name != a.cfg.Node {
		a.cfg.Log.Info("what was kept is of another node, and goes", "node", m.Name)
		m, err = persistedState{}, os.Remove(filepath.Join(a.cfg.KeyDir, stateFile))
		if err != nil {
			a.cfg.Log.Warn("what was kept of another node stays", "error", err)
		}
	}
	a.persisted = m
	if err := a.applyPersisted(); err != nil {
		a.cfg.Log.Warn("not all is as it was before the agent began; trying again", "error", err)
		a.queue.AddRateLimited(hostChanged)
	}
}

// applyPersisted makes routes and tunnel be as they were kept, whether for the first time or because something on the host changed. A
// peer that is none any more is one until the API is reached, as it is to agents that run.
func (a *Agent) applyPersisted() error {
	m := &a.persisted
	if m.Mode != mesh.ModeMesh || m.Routing == nil {
		return nil
	}
	if _, err := a.cfg.Network.SetRoutes(a.cfg.Tunnel, m.Routing, !a.cfg.Cleartext); err != nil {
		return fmt.Errorf("dropping what is for other nodes' pods until the API is reached: %w", err)
	}
	if m.Tunnel == nil || a.modeFor(m.Spec) != mesh.ModeMesh { // an agent for another mode has no rights for a tunnel
		return nil
	}
	if a.resumedReconciler == nil {
		a.resumedReconciler = newMeshReconciler(a.cfg, m.Tunnel, a.api.all, a.triggerHostChanged)
	}
	err := a.resumedReconciler.applyPersisted(m)
	a.stats.setEngine(a.resumedReconciler.engine)
	return err
}
