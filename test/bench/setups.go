// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"

	"github.com/ropewalk/ropewalk/test/bench/remote"
	"github.com/ropewalk/ropewalk/test/bench/result"
)

// setup is an implementation with its settings, as it is measured between two hosts.
type setup struct {
	name           string
	implementation string // one of result.Implementations
	spread         string // result.SpreadOff or result.SpreadOn
	underlay       string // xdp, or empty
	daemon         []string
	kernel, attach bool
}

const xdpUnderlay = "xdp"

// defaultSetup is the setup that others are compared with: spread is on, as by default between two ropewalks.
const defaultSetup = result.Ropewalk

// setups returns all setups, the one without a tunnel first. daemon begins with the name of a copied program.
func setups() []setup {
	ropewalk := func(spread, underlay string) []string {
		return []string{"ropewalk", "run", "--log-level", "error", "--spread", spread, "--underlay", underlay}
	}
	return []setup{
		{name: result.Bare, implementation: result.Bare, spread: result.SpreadOff},
		{name: defaultSetup, implementation: result.Ropewalk, spread: result.SpreadOn, daemon: ropewalk("on", "udp")},
		{name: "ropewalk-off", implementation: result.Ropewalk, spread: result.SpreadOff, daemon: ropewalk("off", "udp")},
		{name: "ropewalk-xdp", implementation: result.Ropewalk, spread: result.SpreadOn, underlay: xdpUnderlay, daemon: ropewalk("on", xdpUnderlay)},
		{name: "kernel", implementation: "kernel", spread: result.SpreadOff, kernel: true},
		{name: "kernel-spread", implementation: "kernel-spread", spread: result.SpreadOn, kernel: true, attach: true},
		{name: "wireguard-go", implementation: "wireguard-go", spread: result.SpreadOff, daemon: []string{"wireguard-go", "-f"}},
		{name: "wireguard-go-spread", implementation: "wireguard-go-spread", spread: result.SpreadOn, daemon: []string{"wireguard-go", "-f"}, attach: true},
		{name: "tailscale", implementation: "tailscale", spread: result.SpreadOff, daemon: []string{"tailscale", "-f"}},
	}
}

// optional are measured only when named, or with --xdp.
func optional(s *setup, xdp bool) bool {
	return s.name == "wireguard-go-spread" || s.underlay == xdpUnderlay && !xdp
}

// chooseSetups picks by name, all with none. missing has the reasons for which setups were left out.
func chooseSetups(names []string, xdp bool, a, b *remote.Client, facts [2]*remote.Facts) (list []setup, missing []string, err error) {
	var all []string
	for _, s := range setups() {
		all = append(all, s.name)
		if named := slices.Contains(names, s.name); !named && (len(names) > 0 || optional(&s, xdp)) {
			continue
		}
		switch why := obstacle(&s, a, b, facts); why {
		case "":
			list = append(list, s)
		default:
			missing = append(missing, s.name+": "+why)
		}
	}
	return list, missing, onlyValid("setup", names, all)
}

// obstacle returns why a setup cannot be measured, or nothing.
func obstacle(s *setup, a, b *remote.Client, facts [2]*remote.Facts) string {
	for i, c := range []*remote.Client{a, b} {
		if s.kernel && facts[i].Kernels != "" {
			return fmt.Sprintf("host %s: %s", hostNames[i], facts[i].Kernels)
		}
		if s.daemon != nil && !c.Has(s.daemon[0]) {
			return "the program was not built"
		}
	}
	return ""
}

// cell is a setup with a number of cores of host A, and an MTU.
type cell struct {
	setup
	mtu, cores int
}

func (c *cell) String() string {
	return fmt.Sprintf("%s, MTU %d, %s", c.name, c.mtu, plural(c.cores, "core"))
}

// cells returns all combinations: by cores, then by MTU, then by setup.
func cells(list []setup, mtus, cores []int) (all []cell) {
	for _, n := range cores {
		for _, m := range mtus {
			for _, s := range list {
				all = append(all, cell{s, m, n})
			}
		}
	}
	return all
}

// bulkTests are taken in every cell, the others only with all cores and the first MTU.
func bulkTests() []string { return []string{"tcp64", "rev64"} }

// hostTurns returns a turn for each cell in each round. The setups of one number of cores and one MTU follow
// one another. Each round begins with another setup: none is always measured right after the same.
func hostTurns(rounds int, all []cell, tests []string, first cell) (list []turn) {
	group := func(c cell) [2]int { return [2]int{c.cores, c.mtu} }
	few := slices.DeleteFunc(slices.Clone(tests), func(t string) bool { return !slices.Contains(bulkTests(), t) })
	for round := 1; round <= rounds; round++ {
		for start := 0; start < len(all); {
			end := start
			for end < len(all) && group(all[end]) == group(all[start]) {
				end++
			}
			for i := range end - start {
				c := all[start+(i+round-1)%(end-start)]
				t := turn{round: round, versus: c.String(), implementations: []string{c.String()}}
				if group(c) != group(first) {
					t.tests = few
				}
				if t.tests == nil || len(few) > 0 {
					list = append(list, t)
				}
			}
			start = end
		}
	}
	return list
}
