// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

func tunnelChecks() []Check {
	return []Check{
		check("tunnel", "implementation of each tunnel, and whether its daemon answers", evaluateTunnel,
			"a tunnel carries traffic only while its interface is up and its daemon runs, and only ropewalk's daemon reports statistics").needsTunnel(),
		check("kernel-stall", "kernels whose WireGuard can stop receiving from a peer (CVE-2026-52945)", evaluateStall,
			"the peer's receive queue stops, most likely with threaded NAPI (/sys/class/net/DEV/threaded): restarting the interface may help, a kernel with the fix does").needsTunnel(),
		check("node-encryption", "Kubernetes nodes to which traffic of nodes leaves unencrypted (nodeEncryption of the RopewalkMesh)", evaluateNodeEncryption,
			"traffic between two nodes is encrypted only if both take part: the agent, the kernel, addresses and labels of either may exclude it").needsTunnel(),
	}
}

// maxListedNodes bounds the addresses in a message.
const maxListedNodes = 5

func evaluateNodeEncryption(f *facts.Facts, r *recorder) {
	found := false
	for _, t := range f.Tunnels {
		if t.Mark != facts.NodeTrafficMark {
			continue
		}
		found = true
		evaluateNodes(&t, r)
	}
	if !found {
		r.ok("", "no tunnel of a Kubernetes node that encrypts traffic between nodes")
	}
}

// evaluateNodes evaluates the tunnel of a node.
func evaluateNodes(t *facts.Tunnel, r *recorder) {
	var unencrypted, unreachable []string
	for _, n := range t.Nodes {
		switch n.Device {
		case t.Name:
		case "":
			unreachable = append(unreachable, n.Addr.String())
		default:
			unencrypted = append(unencrypted, n.Addr.String())
		}
	}
	if len(unencrypted) > 0 {
		r.warn(t.Name, fmt.Sprintf("traffic to %d of %d peer nodes is not encrypted: %s", len(unencrypted), len(t.Nodes), term.Some(unencrypted, maxListedNodes)),
			"ropewalk mesh status   # says which nodes take part, and why others do not")
	}
	if len(unreachable) > 0 {
		r.unknown(t.Name, fmt.Errorf("no route to %d of %d peer nodes: %s", len(unreachable), len(t.Nodes), term.Some(unreachable, maxListedNodes)))
	}
	if len(unencrypted)+len(unreachable) == 0 {
		r.ok(t.Name, "traffic to all %d peer nodes goes through the tunnel", len(t.Nodes))
	}
}

func evaluateStall(f *facts.Facts, r *recorder) {
	isInKernel := func(t facts.Tunnel) bool { return t.Kind == facts.InKernel }
	if !slices.ContainsFunc(f.Tunnels, isInKernel) {
		r.ok("", "no tunnel of the kernel's WireGuard")
	}
	for _, t := range f.Tunnels {
		switch {
		case !isInKernel(t):
		case f.Kernel.StallFixed == "":
			r.ok(t.Name, "Linux %s is none of the affected releases of kernel.org and Debian; other distributions number theirs differently", f.Kernel.Release)
		case t.Threaded:
			r.warn(t.Name, "Linux "+f.Kernel.Release+" can stop receiving from a peer (CVE-2026-52945), and NAPI of the device is threaded",
				"boot Linux "+f.Kernel.StallFixed+" or later; until then: echo 0 >/sys/class/net/"+quote(t.Name)+"/threaded")
		default:
			r.warn(t.Name, "Linux "+f.Kernel.Release+" can stop receiving from a peer (CVE-2026-52945)", "boot Linux "+f.Kernel.StallFixed+" or later")
		}
	}
}

func evaluateTunnel(f *facts.Facts, r *recorder) {
	if len(f.Tunnels) == 0 {
		r.ok("", "no tunnel is running")
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
			fix := "ip link set dev " + quote(t.Name) + " up"
			if t.Saved.Value.File != "" { // the kernel has removed its routes
				fix = "ropewalk reload " + quote(t.Saved.Value.File)
			}
			r.warn(t.Name, "ropewalk; the interface is down", fix)
		case t.Port == 0 && t.Stats.Err != nil:
			r.fail(t.Name, fmt.Sprintf("the daemon does not answer: %v", t.Stats.Err),
				"ropewalk down "+quote(t.Name)+", and start it again")
		default:
			r.warn(t.Name, "served by another program, which reports no statistics", "ropewalk run "+quote(t.Name)+" instead")
		}
	}
}

func evaluatePort(f *facts.Facts, r *recorder) {
	if f.Sockets.Err != nil {
		r.unknown("", f.Sockets.Err)
		return
	}
	if len(f.Tunnels) == 0 && f.Port != 0 {
		evaluateOnePort(r, "", f.Port, socketOwners(f, f.Port, ""))
	}
	for _, t := range f.Tunnels {
		if t.Port == 0 {
			r.ok(t.Name, "no listen port")
			continue
		}
		evaluateOnePort(r, t.Name, t.Port, socketOwners(f, t.Port, t.Name))
	}
}

func evaluateOnePort(r *recorder, subject string, port uint16, others []string) {
	if len(others) > 0 {
		r.fail(subject, fmt.Sprintf("UDP port %d is in use by %s", port, strings.Join(others, ", ")),
			fmt.Sprintf("ss -ulpn 'sport = :%d'   # stop it, or choose another ListenPort", port))
		return
	}
	r.ok(subject, "UDP port %d is used by no other socket", port)
}

// socketOwners lists the other users of a port. It leaves out the tunnel's own sockets: its daemon's, or the kernel's.
func socketOwners(f *facts.Facts, port uint16, self string) []string {
	var others []string
	kind := facts.Kind("")
	for _, t := range f.Tunnels {
		if t.Name == self {
			kind = t.Kind
		} else if t.Port == port && self != "" {
			others = append(others, "tunnel "+t.Name)
		}
	}
	own := 0 // the PID of the tunnel's daemon: the first process found
	for _, s := range f.Sockets.Value {
		switch {
		case s.Addr.Port() != port:
		case s.Inode == 0:
			if kind != facts.InKernel && len(others) == 0 {
				others = append(others, cmp.Or(pluginOf(f, port), "the kernel (a WireGuard device?)"))
			}
		case s.PID == 0:
			if self == "" && len(others) == 0 {
				others = append(others, fmt.Sprintf("an unknown process (needs CAP_SYS_PTRACE), on %s", s.Addr))
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

// Overhead of a data message, in bytes: IP, UDP, header and tag (WireGuard paper, 5.4.6).
const (
	overheadIPv4 = 20 + 8 + 32
	overheadIPv6 = 40 + 8 + 32
)

func evaluatePathMTU(f *facts.Facts, r *recorder) {
	for _, t := range f.Tunnels {
		least, found := 0, ""
		for _, p := range t.Peers {
			if p.PathMTU.Err != nil {
				continue
			}
			room := p.PathMTU.Value - overheadIPv4
			if p.Endpoint.AddrPort.Addr().Unmap().Is6() {
				room = p.PathMTU.Value - overheadIPv6
			}
			if found == "" || room < least {
				least, found = room, fmt.Sprintf("path MTU to %s is %d bytes", p.Endpoint.AddrPort.Addr(), p.PathMTU.Value)
			}
		}
		switch {
		case found == "":
			r.ok(t.Name, "%d bytes; no peer's path MTU is known", t.MTU)
		case t.MTU > least:
			r.warn(t.Name, fmt.Sprintf("%d bytes, but %s: at most %d fits", t.MTU, found, least),
				fmt.Sprintf("ip link set dev %s mtu %d", quote(t.Name), least))
		default:
			r.ok(t.Name, "%d bytes, %s", t.MTU, found)
		}
	}
}

func evaluateLoops(f *facts.Facts, r *recorder) {
	for i := range f.Tunnels {
		t := &f.Tunnels[i]
		looping, path := "", []string(nil)
		for j := range t.Peers {
			if path = loopOf(f, t, &t.Peers[j]); path != nil {
				looping = t.Peers[j].Endpoint.AddrPort.Addr().String()
				break
			}
		}
		if looping == "" {
			r.ok(t.Name, "no message to a peer is routed into the tunnel")
			continue
		}
		r.fail(t.Name, fmt.Sprintf("messages to %s are routed into the tunnel itself (%s)", looping, strings.Join(path, " → ")),
			"ip route add "+looping+" via GATEWAY   # or AllowedIPs = 0.0.0.0/0, ::/0 in place of parts of it: policy routing")
	}
}

func evaluateReplaced(f *facts.Facts, r *recorder) {
	for _, t := range f.Tunnels {
		if t.Replaced.Err != nil {
			r.unknown(t.Name, t.Replaced.Err)
			continue
		}
		isTaken := func(p hostnet.OtherPath) bool { return p.Replaces() && !p.Link.Tunnel }
		paths, record, n := t.Replaced.Value, r.fail, slices.IndexFunc(t.Replaced.Value, isTaken)
		if n < 0 {
			record, n = r.warn, 0
		}
		if len(paths) == 0 {
			r.ok(t.Name, "packets for the tunnel's routes enter it")
			continue
		}
		record(t.Name, fmt.Sprint(paths[n]), "ip rule; ip route show table all "+paths[n].Dst.String()+"   # remove it where it is set: another VPN, or DHCP option 121")
	}
}

// evaluateSaved compares the kernel's configuration of tunnels with the configuration that
// `ropewalk up` has made.
func evaluateSaved(f *facts.Facts, r *recorder) {
	const shown = 3
	for _, t := range f.Tunnels {
		switch missing := t.Saved.Value.Missing; {
		case t.Saved.Err != nil:
			r.unknown(t.Name, t.Saved.Err)
		case t.Saved.Value.File == "":
			r.ok(t.Name, "`ropewalk up` has not brought it up")
		case len(missing) == 0:
			r.ok(t.Name, "as `ropewalk up` has made them")
		default:
			r.fail(t.Name, strings.Join(missing[:min(len(missing), shown)], "; "), "ropewalk reload "+quote(t.Saved.Value.File))
		}
	}
}

// loopOf returns the tunnels through which messages of t to a peer come back to t, nil if they do not.
func loopOf(f *facts.Facts, t *facts.Tunnel, p *facts.Peer) []string {
	path := []string{t.Name}
	all := slices.Concat(f.Tunnels, f.OtherTunnels)
	for len(path) <= len(all) {
		if p.Device == t.Name {
			return append(path, t.Name)
		}
		i := slices.IndexFunc(all, func(o facts.Tunnel) bool { return o.Name == p.Device })
		if i < 0 {
			return nil
		}
		next := peerFor(&all[i], p.Endpoint.AddrPort.Addr().Unmap())
		if next == nil {
			return nil
		}
		path, p = append(path, p.Device), next
	}
	return nil // a loop of other tunnels
}

// peerFor returns the peer to which a tunnel sends packets to an address, nil for none.
func peerFor(t *facts.Tunnel, to netip.Addr) (found *facts.Peer) {
	bits := -1
	for i := range t.Peers {
		for _, prefix := range t.Peers[i].AllowedIPs {
			if prefix.Contains(to) && prefix.Bits() > bits {
				found, bits = &t.Peers[i], prefix.Bits()
			}
		}
	}
	return found
}
