// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

// nodeSettings is what an agent knows of the RopewalkConfig of its node. Settings are tried: if the host refuses them, the agent goes back to
// the last ones that it applied.
type nodeSettings struct {
	followed *followedConfig // the last one that was applied in full; nil: none
	refusal  configRefusal
}

// configRefusal is a config that the host refused.
type configRefusal struct {
	uid        types.UID
	generation int64
	err        *setupError // nil: none was refused
}

// configChoice is what the RopewalkConfigs mean for one reconcile.
type configChoice struct {
	wanted  *followedConfig // the one that applies by the labels; nil: none
	applied *followedConfig // the one whose settings apply: wanted, or the last one while wanted is refused
	rivals  []string        // others of the same priority
	reason  string          // why wanted is refused; empty: it is not
}

// reconcileMode reconciles with the settings of the node's RopewalkConfig, or with the last ones if the host refuses them.
func (a *Agent) reconcileMode(ctx context.Context, n *node, rn *v1alpha1.RopewalkNode, t trigger) (result, error) {
	choice := a.chooseConfig(n, rn.Spec, t)
	settings, last := a.settingsFor(rn.Spec, choice.applied), a.settingsFor(rn.Spec, a.followed)
	res, err := a.reconcileSettings(ctx, n, rn, t, settings)
	var refused *setupError
	if errors.As(err, &refused) && !reflect.DeepEqual(settings, last) {
		a.cfg.Log.Warn("applying the settings of a RopewalkConfig failed, returning to the settings before", "config", choice.wantedName(), "error", refused)
		res, err = a.reconcileSettings(ctx, n, rn, t, last)
		choice.applied, choice.reason = a.followed, refused.Error()
		a.refusal = refusalOf(choice.wanted, refused)
		if again := (*setupError)(nil); errors.As(err, &again) { // the engine refuses any settings
			choice.reason, a.refusal = "", configRefusal{}
		}
	}
	if err == nil {
		if a.followed = choice.applied; choice.reason == "" {
			a.refusal = configRefusal{}
		}
	}
	choice.report(&res, a.followed)
	return res, err
}

// chooseConfig returns the RopewalkConfig of this node. While RopewalkConfigs are unknown, the last one stays in effect.
func (a *Agent) chooseConfig(n *node, spec v1alpha1.NodeSpec, t trigger) configChoice {
	if spec.OptOut {
		return configChoice{applied: a.followed}
	}
	if !a.cluster.configs.HasSynced() {
		return configChoice{wanted: a.followed, applied: a.followed}
	}
	var c configChoice
	c.wanted, c.rivals = chooseConfig(a.cluster.configs.all(), n.Labels)
	c.applied = c.wanted
	s := c.wanted.settings()
	if spec.MTU != 0 {
		s.MTU = 0
	}
	switch err := a.cfg.checkSettings(s, toMesh(n, nil)); {
	case err != nil:
		c.applied, c.reason = a.followed, err.Error()
	case a.refusal.holds(c.wanted, t):
		c.applied, c.reason = a.followed, a.refusal.err.Error()
	}
	return c
}

// refusalOf returns the refusal of a config, or of the settings without one.
func refusalOf(f *followedConfig, err *setupError) configRefusal {
	if f == nil {
		return configRefusal{err: err}
	}
	return configRefusal{f.UID, f.Generation, err}
}

// holds reports whether the host has refused a config, or the settings without one (nil), so that the agent does not apply them again. At each
// resync it does, since a port may have become free.
func (r *configRefusal) holds(f *followedConfig, t trigger) bool {
	same := refusalOf(f, r.err)
	return r.err != nil && *r == same && t != periodicResync
}

// settingsFor returns the settings of the node: those of its spec, of a config, of the flags, in this order.
func (a *Agent) settingsFor(spec v1alpha1.NodeSpec, f *followedConfig) mesh.Settings {
	return specSettings(spec).Over(f.settings()).Over(a.cfg.settings())
}

// wantedName returns the name of the RopewalkConfig that applies by the labels; empty: there is none.
func (c *configChoice) wantedName() string {
	if c.wanted == nil {
		return ""
	}
	return c.wanted.Name
}

// refusal says that the chosen settings are refused.
func (c *configChoice) refusal() string {
	if c.wanted == nil {
		return "the settings without a RopewalkConfig are refused"
	}
	return "RopewalkConfig " + c.wanted.Name + " is refused"
}

// report adds the choice to a result. followed is the config that was applied last.
func (c *configChoice) report(r *result, followed *followedConfig) {
	if c.reason != "" {
		r.configRefused = true
		r.notes = append(r.notes, fmt.Sprintf("%s, the last settings stay in effect: %s", c.refusal(), c.reason))
	}
	if c.wanted == nil {
		return
	}
	r.configRivals = len(c.rivals)
	state := v1alpha1.ConfigPending
	switch {
	case c.reason != "":
		state = v1alpha1.ConfigRefused
	case followed != nil && followed.UID == c.wanted.UID && followed.Generation == c.wanted.Generation:
		state = v1alpha1.ConfigApplied
	}
	r.status.Config = &v1alpha1.FollowedConfig{Name: c.wanted.Name, Generation: c.wanted.Generation, State: state, ConflictsWith: c.rivals[:min(len(c.rivals), v1alpha1.MaxConflicts)]}
	if len(c.rivals) > 0 { // all nodes of the pool have it
		note := fmt.Sprintf("RopewalkConfigs of the same priority select this node, of which the oldest applies: %s, not %s", c.wanted.Name, strings.Join(c.rivals, ", "))
		r.clusterNote = strings.TrimPrefix(r.clusterNote+"; "+note, "; ")
	}
}
