// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
)

func pluginChecks() []Check {
	return []Check{check("cni", "WireGuard devices of Cilium, Calico, flannel, k3s and Kilo, and spread in front of them", evaluatePlugins,
		"NICs see the tunnel between two nodes as one flow; spread mode gives each inner flow a source port and leaves keys, routes and the plugin unchanged")}
}

func evaluatePlugins(f *facts.Facts, r *recorder) {
	plugins := f.Plugins.Value
	switch {
	case f.Plugins.Err != nil:
		r.unknown("", f.Plugins.Err)
	case len(plugins) == 0:
		r.ok("", "no CNI WireGuard device")
	}
	for i := range plugins {
		evaluatePlugin(f, &plugins[i], r)
	}
}

func evaluatePlugin(f *facts.Facts, p *facts.Plugin, r *recorder) {
	found := fmt.Sprintf("%s's WireGuard, port %d", p.Product, p.Port.Value)
	var missing []string
	for _, device := range p.Lower {
		if !slices.Contains(p.Spread.Value, device) {
			missing = append(missing, device)
		}
	}
	switch {
	case p.Port.Err != nil:
		r.unknown(p.Device, p.Port.Err)
	case len(p.Lower) == 0:
		r.ok(p.Device, "%s; no device found on the routes to its peers, so spread is not checked", found)
	case p.Spread.Err != nil:
		r.unknown(p.Device, p.Spread.Err)
	case len(missing) == 0:
		r.ok(p.Device, "%s, spread on %s", found, strings.Join(p.Lower, ", "))
	case !slices.ContainsFunc(missing, func(device string) bool { return hasMultipleQueues(f, device) }):
		r.ok(p.Device, "%s, not spread: only one receive queue on %s, so spread would not help", found, strings.Join(missing, ", "))
	default:
		r.warn(p.Device, fmt.Sprintf("%s, not spread on %s: all flows between two nodes use one queue and one CPU", found, strings.Join(missing, ", ")),
			spreadCommands(p, missing))
	}
}

// hasMultipleQueues reports whether a device has several receive queues. It is true for a device that was not examined.
func hasMultipleQueues(f *facts.Facts, device string) bool {
	i := slices.IndexFunc(f.NICs, func(n facts.NIC) bool { return n.Name == device })
	return i < 0 || receiveQueues(&f.NICs[i]) > 1
}

// spreadCommands returns commands to paste. Each watches its device until stopped, so all but the last run in the background.
func spreadCommands(p *facts.Plugin, devices []string) string {
	var lines []string
	for _, device := range devices {
		lines = append(lines, fmt.Sprintf("ropewalk spread attach %s --port %d --watch", quote(device), p.Port.Value))
	}
	return strings.Join(lines, " &\n") + "\n# on each node, or on all at once: ropewalk agent --mode spread"
}

// pluginOf returns the plugin whose device listens on a port, "" if there is none.
func pluginOf(f *facts.Facts, port uint16) string {
	for i := range f.Plugins.Value {
		if p := &f.Plugins.Value[i]; p.Port.Value == port && p.Port.Err == nil {
			return fmt.Sprintf("%s's %s", p.Product, p.Device)
		}
	}
	return ""
}
