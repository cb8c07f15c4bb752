// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
)

func tunnelChecks() []Check {
	return []Check{check("tunnel", "who serves each tunnel, and whether it answers", judgeTunnel,
		"ropewalk's own daemon tells what it does; in front of the kernel's WireGuard only spread can be used").running()}
}

func judgeTunnel(f *facts.Facts, r *recorder) {
	if len(f.Tunnels) == 0 {
		r.ok("", "no tunnel runs here")
	}
	for _, t := range f.Tunnels {
		switch {
		case denied(t.Stats.Err):
			r.unknown(t.Name, t.Stats.Err)
		case t.Kind == facts.InKernel:
			r.ok(t.Name, "the kernel's WireGuard, port %d; `ropewalk spread attach` spreads its flows", t.Port)
		case t.Kind == facts.Ropewalk && t.Stats.Value.Up:
			r.ok(t.Name, "ropewalk, port %d, %d lanes", t.Port, len(t.Stats.Value.Lanes))
		case t.Kind == facts.Ropewalk:
			r.warn(t.Name, "ropewalk; the interface is down", "ip link set dev "+quote(t.Name)+" up")
		case t.Port == 0 && t.Stats.Err != nil:
			r.fail(t.Name, fmt.Sprintf("its daemon does not answer: %v", t.Stats.Err),
				"ropewalk down "+quote(t.Name)+", and start it again")
		default:
			r.warn(t.Name, "another program serves it, and does not say how", "ropewalk run "+quote(t.Name)+" in its place")
		}
	}
}

func judgePort(f *facts.Facts, r *recorder) {
	if f.Sockets.Err != nil {
		r.unknown("", f.Sockets.Err)
		return
	}
	if len(f.Tunnels) == 0 && f.Port != 0 {
		judgeOnePort(r, "", f.Port, holders(f, f.Port, ""))
	}
	for _, t := range f.Tunnels {
		if t.Port == 0 {
			r.ok(t.Name, "it listens on none")
			continue
		}
		judgeOnePort(r, t.Name, t.Port, holders(f, t.Port, t.Name))
	}
}

func judgeOnePort(r *recorder, subject string, port uint16, others []string) {
	if len(others) > 0 {
		r.fail(subject, fmt.Sprintf("UDP port %d is held by %s", port, strings.Join(others, ", ")),
			fmt.Sprintf("ss -ulpn 'sport = :%d'   # stop it, or choose another ListenPort", port))
		return
	}
	r.ok(subject, "UDP port %d has no other holder", port)
}

// holders names who is bound to a port, without the tunnel itself: its daemon's sockets, or the kernel's.
func holders(f *facts.Facts, port uint16, self string) []string {
	var others []string
	kind := facts.Kind("")
	for _, t := range f.Tunnels {
		if t.Name == self {
			kind = t.Kind
		} else if t.Port == port && self != "" {
			others = append(others, "tunnel "+t.Name)
		}
	}
	own := 0 // the process that serves the tunnel is the first that is found
	for _, s := range f.Sockets.Value {
		switch {
		case s.Addr.Port() != port:
		case s.Inode == 0:
			if kind != facts.InKernel && len(others) == 0 {
				others = append(others, cmp.Or(pluginOf(f, port), "the kernel (a WireGuard device?)"))
			}
		case s.PID == 0:
			if self == "" && len(others) == 0 {
				others = append(others, fmt.Sprintf("a process that cannot be seen, on %s", s.Addr))
			}
		case kind != "" && kind != facts.InKernel && (own == 0 || own == s.PID):
			own = s.PID
		default:
			if name := fmt.Sprintf("%s (%d)", s.Process, s.PID); !slices.Contains(others, name) {
				others = append(others, name)
			}
		}
	}
	return others
}

// What a data message adds to a packet, in bytes: IP, UDP, header and tag (WireGuard paper, 5.4.6).
const (
	overheadIPv4 = 20 + 8 + 32
	overheadIPv6 = 40 + 8 + 32
)

func judgeMTUChain(f *facts.Facts, r *recorder) {
	for _, t := range f.Tunnels {
		least, found := 0, ""
		for _, p := range t.Peers {
			if p.PathMTU.Err != nil {
				continue
			}
			room := p.PathMTU.Value - overheadIPv4
			if p.Endpoint.Addr().Unmap().Is6() {
				room = p.PathMTU.Value - overheadIPv6
			}
			if found == "" || room < least {
				least, found = room, fmt.Sprintf("the path to %s has %d bytes", p.Endpoint.Addr(), p.PathMTU.Value)
			}
		}
		switch {
		case found == "":
			r.ok(t.Name, "%d bytes; no peer's path is known", t.MTU)
		case t.MTU > least:
			r.warn(t.Name, fmt.Sprintf("%d bytes, and %s: %d fit", t.MTU, found, least),
				fmt.Sprintf("ip link set dev %s mtu %d", quote(t.Name), least))
		default:
			r.ok(t.Name, "%d bytes, and %s", t.MTU, found)
		}
	}
}
