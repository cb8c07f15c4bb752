// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
)

func pluginChecks() []Check {
	return []Check{check("cni", "WireGuard devices of Cilium, Calico, flannel, k3s and Kilo, and whether their flows are spread", judgePlugins,
		"such a tunnel is one flow to the NICs of each pair of nodes; spread mode gives each inner flow a source port, and leaves keys, routes and the plugin alone")}
}

func judgePlugins(f *facts.Facts, r *recorder) {
	plugins := f.Plugins.Value
	switch {
	case f.Plugins.Err != nil:
		r.unknown("", f.Plugins.Err)
	case len(plugins) == 0:
		r.ok("", "there are none")
	}
	for i := range plugins {
		judgePlugin(f, &plugins[i], r)
	}
}

func judgePlugin(f *facts.Facts, p *facts.Plugin, r *recorder) {
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
		r.ok(p.Device, "%s, with no peer that is reached by a device", found)
	case p.Spread.Err != nil:
		r.unknown(p.Device, p.Spread.Err)
	case len(missing) == 0:
		r.ok(p.Device, "%s, spread on %s", found, strings.Join(p.Lower, ", "))
	case !slices.ContainsFunc(missing, func(device string) bool { return severalQueues(f, device) }):
		r.ok(p.Device, "%s, not spread; there is one receive queue on %s to spread over", found, strings.Join(missing, ", "))
	default:
		r.warn(p.Device, fmt.Sprintf("%s, not spread on %s: all flows of a pair of nodes are one queue's and one processor's", found, strings.Join(missing, ", ")),
			spreadCommands(p, missing))
	}
}

// severalQueues is also true of a device that was not looked at.
func severalQueues(f *facts.Facts, device string) bool {
	i := slices.IndexFunc(f.NICs, func(n facts.NIC) bool { return n.Name == device })
	return i < 0 || receiveQueues(&f.NICs[i]) > 1
}

// spreadCommands can be pasted: each watches its device until it is ended, so that all but the last are in the background.
func spreadCommands(p *facts.Plugin, devices []string) string {
	var lines []string
	for _, device := range devices {
		lines = append(lines, fmt.Sprintf("ropewalk spread attach %s --port %d --watch", quote(device), p.Port.Value))
	}
	return strings.Join(lines, " &\n") + "\n# on each node, or on all at once: ropewalk agent --mode spread"
}

// pluginOf names the plugin whose device listens on a port, "" if none does.
func pluginOf(f *facts.Facts, port uint16) string {
	for i := range f.Plugins.Value {
		if p := &f.Plugins.Value[i]; p.Port.Value == port && p.Port.Err == nil {
			return fmt.Sprintf("%s's %s", p.Product, p.Device)
		}
	}
	return ""
}
