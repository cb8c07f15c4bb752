// SPDX-License-Identifier: Apache-2.0

package host

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// Sample returns a sample of a device's status and statistics, with the host's counters for the routes to its peers.
func (r *Reader) Sample(status *config.Status, stats device.Stats) top.Sample {
	now := time.Now()
	var endpoints []config.Endpoint
	for i := range status.Peers {
		if to := status.Peers[i].Endpoint; to.AddrPort.IsValid() {
			endpoints = append(endpoints, to)
		}
	}
	return top.SampleOf(status, stats, r.Read(status.Name, endpoints, status.FwMark), now)
}
