// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/view"
)

// Sample returns a sample of a device's status and statistics, with the host's counters for the routes to its peers.
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
