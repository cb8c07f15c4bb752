// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// spreadDaemon is a daemon of ropewalk. It spreads flows over source ports by itself, without eBPF programs on a device.
type spreadDaemon struct {
	Interface string `json:"interface"`
	Mode      string `json:"mode"`  // of `ropewalk run --spread`
	Ports     string `json:"ports"` // the range of source ports
	Peers     int    `json:"peers"`
	Spread    int    `json:"spread_peers"` // peers to which flows are spread now
}

// spreadDaemons returns the daemons of this network namespace, or the daemon of one interface. The
// error has the daemons that cannot be asked; the list has the others.
func spreadDaemons(dir uapi.Dir, name string) (list []spreadDaemon, err error) {
	names := []string{name}
	if name == "" {
		names, err = dir.Interfaces()
	}
	for _, n := range names {
		report, e := spreadOf(dir, n)
		err = errors.Join(err, e)
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
	return list, err
}

// spreadOf returns nil for an interface without a daemon of ropewalk in this network namespace.
func spreadOf(dir uapi.Dir, name string) (*config.SpreadReport, error) {
	_, err := hostnet.FindLink(name)
	if errors.Is(err, hostnet.ErrNoLink) { // the socket directory has the tunnels of all network namespaces
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c, err := dir.Dial(name)
	if uapi.IsNotRunning(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	var stats show.Stats
	if err := c.Stats(&stats); err != nil && !isRefusal(err) {
		return nil, err
	}
	return stats.Spread, nil
}

// isRefusal reports whether a daemon does not know a request: it answers with an errno, or closes the connection.
func isRefusal(err error) bool {
	if _, answered := errors.AsType[*uapi.Error](err); answered {
		return true
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET)
}

// renderSpreadDaemons returns the daemons as text: that they need no `ropewalk spread attach`, their modes, ports and peers.
func renderSpreadDaemons(list []spreadDaemon, s term.Style) string {
	var b strings.Builder
	for _, d := range list {
		name := printable(d.Interface)
		if d.Mode == config.SpreadOff.String() {
			fmt.Fprintf(&b, "%s  its daemon does not spread: Spread = off\n", s.Bold(name))
			continue
		}
		fmt.Fprintf(&b, "%s  its daemon spreads by itself, without `spread attach`\n", s.Bold(name))
		fmt.Fprintf(&b, "  mode %s, source ports in %s, to %d of %s now\n", printable(d.Mode), d.Ports, d.Spread, term.Count(d.Peers, "peer"))
		fmt.Fprintf(&b, "  %s\n", s.Faint("see: ropewalk show "+name+" --lanes"))
	}
	return b.String()
}
