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

// livePages are the web page beside the metrics, and what it fetches. It shows single peers where the metrics do.
func livePages(d metrics.Device, o metrics.Options) map[string]http.Handler {
	reader := machine.New()
	return page.Handlers(page.Config{
		Sample: func() view.Sample {
			status := d.Status()
			stats, _ := d.Stats().(device.Stats)
			return reader.Sample(&status, stats)
		},
		ShowPeers: func(peers int) bool { return showsPeers(o, peers) },
	})
}

func showsPeers(o metrics.Options, peers int) bool {
	return o.PerPeer == metrics.PerPeerOn || o.PerPeer == metrics.PerPeerAuto && peers <= metrics.MaxPeers
}
