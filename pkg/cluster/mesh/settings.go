// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Settings are what may differ between the nodes of a cluster. A zero field is not set.
type Settings struct {
	Port      uint16               `json:"port,omitempty"`
	MTU       int                  `json:"mtu,omitempty"`       // of the tunnel, in bytes
	Keepalive uint16               `json:"keepalive,omitempty"` // persistent keepalive of other nodes, in seconds
	Underlay  *config.UnderlayMode `json:"underlay,omitempty"`
}

// Over returns s with the settings of another one where s has none.
func (s Settings) Over(o Settings) Settings {
	return Settings{
		Port: cmp.Or(s.Port, o.Port), MTU: cmp.Or(s.MTU, o.MTU), Keepalive: cmp.Or(s.Keepalive, o.Keepalive),
		Underlay: cmp.Or(s.Underlay, o.Underlay),
	}
}

// NodeConfig are the settings of a pool of nodes, as an administrator defined them.
type NodeConfig struct {
	Name     string // unique
	Created  time.Time
	Priority int32
	Settings Settings
}

// ChooseConfig returns the one of the configs that applies to a node which all of them select, or nil without any: that of the highest
// priority, of equal ones the oldest, then the first by name. rivals are the others of its priority, by name.
func ChooseConfig(selecting []NodeConfig) (chosen *NodeConfig, rivals []string) {
	for i := range selecting {
		if c := &selecting[i]; chosen == nil || compareConfigs(c, chosen) < 0 {
			chosen = c
		}
	}
	for i := range selecting {
		if c := &selecting[i]; c != chosen && c.Priority == chosen.Priority {
			rivals = append(rivals, c.Name)
		}
	}
	slices.Sort(rivals)
	return chosen, rivals
}

func compareConfigs(a, b *NodeConfig) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}
