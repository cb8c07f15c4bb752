// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"

	"github.com/ropewalk/ropewalk/pkg/observe/metrics"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/observe/top/host"
	"github.com/ropewalk/ropewalk/pkg/observe/top/page"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// webPages returns the live web page of the metrics server, and the data that it fetches. It shows single peers if the metrics do.
func webPages(d metrics.Device, o metrics.Options) map[string]http.Handler {
	host := host.New()
	return page.Handlers(page.Config{
		Sample: func() top.Sample {
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
