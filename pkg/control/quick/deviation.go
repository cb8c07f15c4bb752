// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"net/netip"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// deviations are parts of settings that the kernel lacks. Accepted ones PostUp has removed: Reload
// does not add them. The MTU is none of them, as settings have the MTU that PostUp sets.
type deviations struct {
	Down      bool           `json:"down,omitempty"`
	Addresses []netip.Prefix `json:"addresses,omitempty"`
	Routes    []tableRoute   `json:"routes,omitempty"`
	Rules     []policyRule   `json:"rules,omitempty"`
	Paths     []takenPath    `json:"paths,omitempty"`
}

// policyRule is a rule of addMarkRule, or the one of addSuppressRule before it.
type policyRule struct {
	Family   hostnet.Family `json:"family"`
	Mark     uint32         `json:"mark"`
	Suppress bool           `json:"suppress,omitempty"`
}

// takenPath is a part of a prefix whose packets leave by another link.
type takenPath struct {
	Prefix netip.Prefix `json:"prefix"`
	Part   netip.Prefix `json:"part"`
	Link   string       `json:"link"`
}

// deviations returns what the interface lacks of the settings, but for paths and accepted deviations.
func (p *present) deviations(planned *settings) deviations {
	accepted := &planned.Accepted
	return deviations{
		Down:      !p.Up && !accepted.Down,
		Addresses: without(p.absent(planned.Addresses), accepted.Addresses),
		Routes:    routesWithout(p.missing(planned.Routes), accepted.Routes),
		Rules:     without(p.missingRules(planned), accepted.Rules),
	}
}

// missingRules returns the rules of policy routing that are missing, or in the wrong order.
func (p *present) missingRules(planned *settings) (missing []policyRule) {
	for _, f := range planned.Policy {
		if marked, _, preceded := p.policy(f, planned.Mark); !marked || !preceded {
			missing = append(missing, policyRule{f, planned.Mark, marked})
		}
	}
	return missing
}

// within returns the deviations from parts that the settings also have. Others have to be made if
// a later file has them again.
func (d deviations) within(s *settings) deviations {
	d.Addresses = intersection(d.Addresses, s.Addresses)
	d.Routes = routesWithout(d.Routes, routesWithout(d.Routes, s.Routes))
	d.Rules = slices.DeleteFunc(slices.Clone(d.Rules), func(r policyRule) bool { return r.Mark != s.Mark || !slices.Contains(s.Policy, r.Family) })
	d.Paths = slices.DeleteFunc(slices.Clone(d.Paths), func(t takenPath) bool {
		return !slices.ContainsFunc(s.Routes, func(r tableRoute) bool { return r.Dst == t.Prefix })
	})
	return d
}
