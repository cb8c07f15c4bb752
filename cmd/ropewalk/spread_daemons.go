// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// spreadDaemon is a daemon of ropewalk, which spreads by itself, without programs on a device.
type spreadDaemon struct {
	Interface string `json:"interface"`
	Mode      string `json:"mode"`  // of `ropewalk run --spread`
	Ports     string `json:"ports"` // the range of source ports
	Peers     int    `json:"peers"`
	Spread    int    `json:"spread_peers"` // peers to which flows are spread now
}

// spreadDaemons returns the daemons of this network namespace, or that of one interface. It fails for one that this user may not ask.
func spreadDaemons(dir uapi.Dir, name string) (list []spreadDaemon, err error) {
	names := []string{name}
	if name == "" {
		names, _ = dir.Interfaces() // an error means none
	}
	for _, n := range names {
		report, err := spreadOf(dir, n)
		if err != nil {
			return nil, err
		}
		if report != nil {
			d := spreadDaemon{Interface: n, Mode: report.Mode.String(), Ports: report.Ports().String(), Peers: len(report.Peers)}
			for _, p := range report.Peers {
				if p.Active {
					d.Spread++
				}
			}
			list = append(list, d)
		}
	}
	return list, nil
}

// spreadOf returns nil for an interface without a daemon of ropewalk.
func spreadOf(dir uapi.Dir, name string) (*config.SpreadReport, error) {
	if _, err := hostnet.FindLink(name); err != nil { // sockets are those of all network namespaces
		return nil, nil
	}
	c, err := dir.Dial(name)
	if errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	if err != nil {
		return nil, nil
	}
	defer c.Close()
	var stats show.Stats
	if c.Stats(&stats) != nil {
		return nil, nil
	}
	return stats.Spread, nil
}

// renderSpreadDaemons says that these daemons need no programs of `ropewalk spread attach`.
func renderSpreadDaemons(list []spreadDaemon, s term.Style) string {
	var b strings.Builder
	for _, d := range list {
		name := printable(d.Interface)
		if d.Mode == config.SpreadOff.String() {
			fmt.Fprintf(&b, "%s  its daemon does not spread: Spread = off\n", s.Bold(name))
			continue
		}
		fmt.Fprintf(&b, "%s  its daemon spreads by itself, without `spread attach`\n", s.Bold(name))
		fmt.Fprintf(&b, "  mode %s, source ports in %s, to %d of %s now\n", printable(d.Mode), d.Ports, d.Spread, countOf(d.Peers, "peer"))
		fmt.Fprintf(&b, "  %s\n", s.Faint("see: ropewalk show "+name+" --lanes"))
	}
	return b.String()
}
