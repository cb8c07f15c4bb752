// SPDX-License-Identifier: Apache-2.0

package mesh

import "github.com/ropewalk/ropewalk/pkg/protocol/config"

// Settings may differ between the nodes of a cluster. A zero field is not set.
type Settings struct {
	Port      uint16              `json:"port,omitempty"`
	MTU       int                 `json:"mtu,omitempty"`       // of the tunnel, in bytes
	Keepalive uint16              `json:"keepalive,omitempty"` // persistent keepalive of other nodes, in seconds
	Underlay  config.UnderlayMode `json:"underlay,omitempty"`
}
