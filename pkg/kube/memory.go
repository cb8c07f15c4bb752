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

// memory is what a node's agent keeps beside the key, for the time between its end, or a reboot, and the first word of the
// API: what administrators asked for, which the loss of a RopewalkNode does not take back, what goes into the tunnel, which
// nothing may leave in the clear of, and the tunnel itself. None of it is secret.
type memory struct {
	Node    types.UID         `json:"node"` // of which all is
	Name    string            `json:"name,omitempty"`
	Mode    mesh.Mode         `json:"mode"`
	Spec    v1alpha1.NodeSpec `json:"spec"`
	Routing *Routing          `json:"routing,omitempty"` // in mesh mode
	Tunnel  *kept             `json:"tunnel,omitempty"`  // in mesh mode
}

// kept is what the tunnel was like.
type kept struct {
	Addrs []netip.Addr   `json:"addrs,omitempty"` // the node's own
	Pods  []netip.Prefix `json:"pods,omitempty"`  // the node's own
	// Peers tell who has which key besides, which outlives agents, too: else a node could claim another's key while all restart.
	Peers []mesh.Peer `json:"peers,omitempty"`
}

// memoryFile is its file in the directory of keys.
const memoryFile = "agent.json"

// maxMemory bounds what is read of it: 5,000 nodes are one megabyte.
const maxMemory = 64 << 20

// recall returns what was kept. None that there is, and none that can be read, is an empty one.
func recall(dir string) (m memory, err error) {
	f, err := os.Open(filepath.Join(dir, memoryFile))
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("reading what was kept: %w", err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxMemory)).Decode(&m); err != nil {
		return memory{}, fmt.Errorf("reading what was kept: %w", err)
	}
	return m, nil
}

// keep makes the file be of m, whole or not at all.
func (m *memory) keep(dir string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return writeWhole(dir, memoryFile+".*", text, func(from string) error { return os.Rename(from, filepath.Join(dir, memoryFile)) })
}

// sweep removes what a crash has left of a file in the making.
func sweep(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, memoryFile+".*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

// remember keeps m if it is new, or could not be kept before.
func (a *Agent) remember(m memory) {
	if !a.unkept && reflect.DeepEqual(a.memory, m) {
		return
	}
	err := m.keep(a.cfg.KeyDir)
	if err != nil && !a.unkept {
		a.cfg.Log.Warn("what administrators ask for is forgotten with this process", "error", err)
	}
	a.memory, a.unkept = m, err != nil
}

// specOf is what administrators ask for. A RopewalkNode that is gone, or that nobody but its agent has written since, asks
// for nothing else than the one before it.
func (a *Agent) specOf(n *node, rn *v1alpha1.RopewalkNode) v1alpha1.NodeSpec {
	if untouched(rn) && a.memory.Node == n.UID {
		return a.memory.Spec
	}
	return rn.Spec
}

// guard drops what is not to leave in the clear, and carries what goes into the tunnel, before the API has said anything.
func (a *Agent) guard() {
	sweep(a.cfg.KeyDir)
	m, err := recall(a.cfg.KeyDir)
	if err != nil {
		a.cfg.Log.Warn("what administrators asked for is found out anew", "error", err)
	}
	if m.Name != "" && m.Name != a.cfg.Node {
		a.cfg.Log.Info("what was kept is of another node, and goes", "node", m.Name)
		m, err = memory{}, os.Remove(filepath.Join(a.cfg.KeyDir, memoryFile))
		if err != nil {
			a.cfg.Log.Warn("what was kept of another node stays", "error", err)
		}
	}
	a.memory = m
	if err := a.resume(); err != nil {
		a.cfg.Log.Warn("not all is as it was before the agent began; trying again", "error", err)
		a.queue.AddRateLimited(onHost)
	}
}

// resume makes routes and tunnel be as they were kept, whether for the first time or because something on the host changed. A
// peer that is none any more is one until the API is reached, as it is to agents that run.
func (a *Agent) resume() error {
	m := &a.memory
	if m.Mode != mesh.ModeMesh || m.Routing == nil {
		return nil
	}
	if _, err := a.cfg.Network.SetRoutes(a.cfg.Tunnel, m.Routing, !a.cfg.Cleartext); err != nil {
		return fmt.Errorf("dropping what is for other nodes' pods until the API is reached: %w", err)
	}
	if m.Tunnel == nil || a.modeOf(m.Spec) != mesh.ModeMesh { // an agent for another mode has no rights for a tunnel
		return nil
	}
	if a.early == nil {
		a.early = newMesher(a.cfg, m.Tunnel, a.api.all, a.again)
	}
	err := a.early.resume(m)
	a.stats.showEngine(a.early.engine)
	return err
}
