// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// modeReconciler implements one mode on this node.
type modeReconciler interface {
	// reconcile makes the host match the cluster. After an error, the result has what was done until then.
	reconcile(ctx context.Context, in reconcileInput) (result, error)
	// tearDown removes everything that the mode has added to the host, when the node opts out or changes its mode.
	tearDown(ctx context.Context) error
	// stop ends the mode's goroutines when the process ends. Interfaces, routes and attached programs stay.
	stop()
}

// modeSwitch holds the reconcilers of an agent.
type modeSwitch struct {
	active            modeReconciler  // nil: no mode has been entered
	mode              mesh.Mode       // of active
	resumedReconciler *meshReconciler // runs the persisted tunnel before a mode is entered; nil: there is none
	lastSpreadPort    uint16          // the tunnel's port in the last status of spread mode; 0: unknown
}

// modeFor returns the mode of the spec, or the agent's default.
func (a *Agent) modeFor(spec v1alpha1.NodeSpec) mesh.Mode {
	return cmp.Or(mesh.Mode(spec.Mode), a.cfg.Mode)
}

// switchMode makes the reconciler of a mode the active one. It first tears down the other mode, including remains of an earlier
// agent.
func (a *Agent) switchMode(ctx context.Context, mode mesh.Mode) error {
	if a.active != nil && mode == a.mode {
		return nil
	}
	spreader, mesher := newSpreadReconciler(a.cfg, a.lastSpreadPort, a.triggerHostChanged), a.resumedReconciler
	if mesher == nil {
		mesher = newMeshReconciler(a.cfg, a.persisted.Tunnel, a.api.all, a.triggerHostChanged)
	}
	var next, previous modeReconciler = spreader, mesher
	switch mode {
	case mesh.ModeSpread:
	case mesh.ModeMesh:
		next, previous = mesher, spreader
	default:
		return fmt.Errorf("unknown mode %q of this node: want spread or mesh", mode)
	}
	if a.active != nil {
		previous = a.active
	}
	switch err := previous.tearDown(ctx); {
	case err == nil:
	case a.active == nil && mode == mesh.ModeMesh: // programs that no traffic passes do no harm
		a.cfg.Log.Warn("detaching spread mode's eBPF programs of an earlier agent failed, leaving them attached: the agent tries again when it restarts", "error", err)
	default:
		return fmt.Errorf("tearing down the mode before %s: %w", mode, err)
	}
	a.active, a.mode, a.resumedReconciler = next, mode, nil
	return nil
}

// stopReconcilers stops whatever runs, as the process ends.
func (a *Agent) stopReconcilers() {
	if a.resumedReconciler != nil {
		a.resumedReconciler.stop()
	}
	if a.active != nil {
		a.active.stop()
	}
}

// runningMesh returns the reconciler that runs the tunnel, or nil.
func (a *Agent) runningMesh() *meshReconciler {
	m, _ := a.active.(*meshReconciler)
	return cmp.Or(m, a.resumedReconciler)
}

// runningEngine returns the tunnel's engine, or nil. It does not depend on the outcome of the last reconcile.
func (a *Agent) runningEngine() Engine {
	m := a.runningMesh()
	if m == nil {
		return nil
	}
	return m.engine
}
