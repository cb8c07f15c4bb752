// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/view"
)

// Sample is what a device says of itself, now, with what the machine says of the way to its peers.
func (r *Reader) Sample(status *config.Status, stats device.Stats) view.Sample {
	now := time.Now()
	var endpoints []netip.Addr
	for i := range status.Peers {
		if to := status.Peers[i].Endpoint.AddrPort; to.IsValid() {
			endpoints = append(endpoints, to.Addr())
		}
	}
	return view.SampleOf(status, stats, r.Read(status.Name, endpoints, status.FwMark), now)
}
