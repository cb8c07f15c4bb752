// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"runtime"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
)

// NewBuildInfo returns the metric ropewalk_build_info. Its revision is the revision that the go
// tool stamped, or empty.
func NewBuildInfo(version string) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: buildInfo.name, Help: buildInfo.help,
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version(), "revision": revision()},
	})
	info.Set(1)
	return info
}

func revision() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range build.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
