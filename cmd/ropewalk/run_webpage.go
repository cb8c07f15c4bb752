// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"

	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/metrics"
	"github.com/ropewalk/ropewalk/pkg/view"
	"github.com/ropewalk/ropewalk/pkg/view/machine"
	"github.com/ropewalk/ropewalk/pkg/view/page"
)

// webPages returns the live web page of the metrics server, and the data that it fetches. It shows single peers if the metrics do.
func webPages(d metrics.Device, o metrics.Options) map[string]http.Handler {
	host := machine.New()
	return page.Handlers(page.Config{
		Sample: func() view.Sample {
			status := d.Status()
			stats, _ := d.Stats().(device.Stats)
			return host.Sample(&status, stats)
		},
		ShowPeers: func(peers int) bool { return showsPeers(o, peers) },
	})
}

// showsPeers reports whether each of that many peers is shown.
func showsPeers(o metrics.Options, peers int) bool {
	return o.PerPeer == metrics.PerPeerOn || o.PerPeer == metrics.PerPeerAuto && peers <= metrics.MaxPeers
}
