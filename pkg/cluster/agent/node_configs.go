// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// nodeConfigs follows the RopewalkConfigs.
type nodeConfigs struct {
	*optionalInformer
	patience time.Duration // how long to wait for them once all other objects are known
}

// configsPatience is longer than a slow API server takes for a short list. An error that stays, as of an object that cannot be decoded, must not keep
// a node without tunnel.
const configsPatience = 10 * time.Second

func newNodeConfigs(c *client, log *slog.Logger, changed func()) (nodeConfigs, error) {
	o, err := newOwnInformer(c, v1alpha1.ConfigResource, &v1alpha1.RopewalkConfig{}, log, changed)
	return nodeConfigs{o, configsPatience}, err
}

// parsedConfig is a RopewalkConfig.
type parsedConfig struct {
	object   *v1alpha1.RopewalkConfig
	selector labels.Selector // of nodes; nothing if invalid is set
	invalid  string          // why no node can follow it; empty: some may
}

// all returns the RopewalkConfigs by name, except those that are being deleted.
func (c nodeConfigs) all() (list []parsedConfig) {
	for _, o := range c.GetStore().List() {
		if rc, ok := o.(*v1alpha1.RopewalkConfig); ok && rc.DeletionTimestamp.IsZero() {
			list = append(list, parseConfig(rc))
		}
	}
	slices.SortFunc(list, func(a, b parsedConfig) int { return cmp.Compare(a.object.Name, b.object.Name) })
	return list
}

// parseConfig parses a RopewalkConfig. The API server has validated it, but maybe with another version of the CRD.
func parseConfig(rc *v1alpha1.RopewalkConfig) parsedConfig {
	p := parsedConfig{object: rc, selector: labels.Nothing()}
	selector, err := metav1.LabelSelectorAsSelector(rc.Spec.NodeSelector.LabelSelector())
	if err != nil {
		p.invalid = "spec.nodeSelector: " + err.Error()
		return p
	}
	if err := checkConfigSpec(&rc.Spec); err != nil {
		p.invalid = err.Error()
		return p
	}
	p.selector = selector
	return p
}

// checkConfigSpec returns an error for values that the CRD does not admit, and that would overflow.
func checkConfigSpec(s *v1alpha1.ConfigSpec) error {
	for _, f := range []struct {
		name             string
		value, low, high int32
	}{
		{"port", s.Port, 0, 65535},
		{"mtu", s.MTU, 0, 65535},
		{"persistentKeepalive", s.PersistentKeepalive, 0, 65535},
	} {
		if f.value < f.low || f.value > f.high {
			return fmt.Errorf("spec.%s is %d: want %d to %d", f.name, f.value, f.low, f.high)
		}
	}
	if _, err := config.ParseUnderlayMode(string(cmp.Or(s.Underlay, "auto"))); err != nil {
		return fmt.Errorf("spec.underlay: %w", err)
	}
	return nil
}

// nodeConfig returns the planner's view of a config.
func (p *parsedConfig) nodeConfig() mesh.NodeConfig {
	s := &p.object.Spec
	c := mesh.NodeConfig{Name: p.object.Name, Created: p.object.CreationTimestamp.Time, Priority: s.Priority, Settings: mesh.Settings{
		Port: uint16(s.Port), MTU: int(s.MTU), Keepalive: uint16(s.PersistentKeepalive),
	}}
	if s.Underlay != "" {
		mode, _ := config.ParseUnderlayMode(string(s.Underlay)) // parseConfig has checked it
		c.Settings.Underlay = &mode
	}
	return c
}

// followedConfig is the RopewalkConfig that applies to a node. It is persisted.
type followedConfig struct {
	Name       string        `json:"name"`
	UID        types.UID     `json:"uid"`
	Generation int64         `json:"generation"`
	Settings   mesh.Settings `json:"settings"`
}

// settings returns those of the config, or none without one.
func (f *followedConfig) settings() mesh.Settings {
	if f == nil {
		return mesh.Settings{}
	}
	return f.Settings
}

// chooseConfig returns the config that applies to a node with the given labels, or nil, and its rivals.
func chooseConfig(all []parsedConfig, nodeLabels labels.Set) (f *followedConfig, rivals []string) {
	var selecting []mesh.NodeConfig
	for i := range all {
		if all[i].selector.Matches(nodeLabels) {
			selecting = append(selecting, all[i].nodeConfig())
		}
	}
	chosen, rivals := mesh.ChooseConfig(selecting)
	if chosen == nil {
		return nil, nil
	}
	i := slices.IndexFunc(all, func(p parsedConfig) bool { return p.object.Name == chosen.Name })
	return &followedConfig{chosen.Name, all[i].object.UID, all[i].object.Generation, chosen.Settings}, rivals
}
