// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/engine"
)

// restorePersisted loads the persisted state and applies it, before the API is reached: traffic for other nodes' pods is routed
// into the tunnel, or dropped. It returns an error if the state is one of the other mode.
func (a *Agent) restorePersisted() error {
	saved, err := loadPersistedState(a.cfg.KeyDir)
	if err != nil {
		a.cfg.Log.Warn("loading saved state failed, no tunnel until the API answers: traffic for other nodes' pods may be dropped or unencrypted meanwhile",
			"file", filepath.Join(a.cfg.KeyDir, stateFile), "error", err)
	}
	if saved.Name != "" && saved.Name != a.cfg.Node {
		a.cfg.Log.Info("discarding saved state: it belongs to another node", "saved_node", saved.Name)
		saved, err = persistedState{}, os.Remove(filepath.Join(a.cfg.KeyDir, stateFile))
		if err != nil {
			a.cfg.Log.Warn("removing the saved state of another node failed, leaving the file until the next save replaces it", "error", err)
		}
	}
	if saved.Mode != "" && saved.Mode != a.cfg.Mode {
		return fmt.Errorf("starting in mode %s: %w %s: run the cleanup of that mode first (cleanup.enabled=true in its chart, or ropewalk-agent cleanup)", a.cfg.Mode, errOtherMode, saved.Mode)
	}
	a.persisted = saved
	if saved.Mesh != nil {
		if a.intent, err = parseIntent(&saved.Mesh.Spec); err != nil {
			a.cfg.Log.Warn("reading the saved RopewalkMesh failed, waiting for the API: routes that exist stay", "error", err)
		} else {
			a.intent.revision = meshRevision{saved.Mesh.UID, saved.Mesh.Generation}
		}
	}
	a.startReconciler()
	a.removeRenamedTunnel()
	if err := a.applyLastDesired(nil); err != nil {
		a.cfg.Log.Warn("restoring tunnel and routes from saved state failed, retrying: traffic for other nodes' pods may be dropped or unencrypted meanwhile", "error", err)
		a.queue.AddRateLimited(hostChanged)
	}
	return nil
}

// errOtherMode means that routes or programs may be on the node which this agent does not know.
var errOtherMode = errors.New("the node has the state of an agent in mode")

// removeRenamedTunnel removes the interface that an earlier agent had under another name (--tunnel): no later agent or cleanup would know of it.
func (a *Agent) removeRenamedTunnel() {
	t := a.persisted.Tunnel
	if t == nil || t.Name == "" || t.Name == a.cfg.Tunnel {
		return
	}
	if err := a.cfg.Network.RemoveInterface(t.Name); err != nil {
		a.cfg.Log.Warn("removing the former tunnel's interface failed, leaving it: no route uses it", "interface", t.Name, "error", err)
		return
	}
	a.cfg.Log.Info("removed the former tunnel's interface, the tunnel has another name now", "former_interface", t.Name, "interface", a.cfg.Tunnel)
}

// applyLastDesired applies the last known desired state while the cluster does not supply one. n is this node in the API, or nil.
func (a *Agent) applyLastDesired(n *node) error {
	switch a.state {
	case stateSyncing, stateResumed:
		return a.applyPersisted()
	case stateHolding:
		return a.reapplyTunnel(n)
	default:
		return nil
	}
}

// applyPersisted restores routes and tunnel from the persisted state, or repairs them after a change on the host. Peers that left
// the cluster meanwhile stay until the API is reached, as they do for an agent that was running.
func (a *Agent) applyPersisted() error {
	saved := &a.persisted
	if a.runningMesh() == nil || saved.Routing == nil || a.intent == nil {
		return nil
	}
	saved.Routing.Cleartext = saved.allowsCleartext(a.intent.cleartext) // the intent may be newer
	if !a.intent.nodes.enabled {                                        // likewise
		saved.Routing.Nodes = nil
	}
	if _, err := a.cfg.Engine.Status(); errors.Is(err, engine.ErrForeign) {
		return fmt.Errorf("restoring the tunnel %s until the API is reached: %w", a.cfg.Tunnel, err)
	}
	if _, err := a.cfg.Network.SetRoutes(a.cfg.Tunnel, saved.Routing); err != nil {
		return fmt.Errorf("restoring routes until the API is reached: %w", err)
	}
	if saved.Tunnel == nil {
		return nil
	}
	return a.runningMesh().applyPersisted(saved, a.intent)
}

// reapplyTunnel repairs a running tunnel. It leaves the tunnel alone once n is another node than
// the tunnel was made for. Its pods' addresses may belong to another node by now.
func (a *Agent) reapplyTunnel(n *node) error {
	m := a.runningMesh()
	if m == nil || n != nil && n.UID != a.persisted.Node {
		return nil
	}
	changes, err := m.reapply()
	a.stats.Changes.Add(uint64(changes))
	a.reportDrift(changes)
	return err
}

// saveStrict saves that cleartext is refused from now on, although the reconcile failed that decided so: the next agent must not allow
// it again. Everything else stays as it was saved.
func (a *Agent) saveStrict(n *node, since time.Time) {
	next := a.persisted
	if next.Node != n.UID {
		next = persistedState{Node: n.UID, Name: n.Name, Mode: a.cfg.Mode}
	}
	tunnel := savedTunnel{}
	if next.Tunnel != nil {
		tunnel = *next.Tunnel
	}
	tunnel.StrictSince = since
	next.Tunnel = &tunnel
	a.savePersisted(next)
}
