// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func hostChecks() []Check {
	return []Check{
		check("socket-buffers", "net.core.rmem_max and wmem_max", evaluateBuffers,
			"they limit socket buffers, which must hold whole trains, unless the process has CAP_NET_ADMIN"),
		check("backlog", "net.core.netdev_max_backlog", evaluateBacklog,
			"packets that RPS or a virtual device passes to another CPU wait in this queue and are dropped when it is full").fixable(),
		check("ip-forward", "net.ipv4.ip_forward and net.ipv6.conf.all.forwarding", evaluateForward,
			"required where peers reach other hosts through this one"),
		check("forward-trains", "gso_max_size and gro_max_size (BIG TCP) of other devices, where IP forwarding is on", evaluateBigTCP,
			"a forwarded train above 65,536 bytes, the limit of a TUN device, enters the tunnel in single packets, which cost several times as much"),
		check("rp-filter", "net.ipv4.conf.*.rp_filter of underlay devices and tunnels", evaluateRPFilter,
			"strict mode (1) drops a packet that arrives on another device than the route back to its source"),
		check("src-valid-mark", "net.ipv4.conf.all.src_valid_mark, for tunnels with a firewall mark", evaluateSrcValidMark,
			"with strict rp_filter and src_valid_mark=0, peers' packets are dropped when the default route goes into the tunnel").fixable(),
		check("conntrack", "nf_conntrack_count against nf_conntrack_max", evaluateConntrack,
			"each source port of a spread tunnel is an entry; new flows are dropped when the table is full"),
		check("spread-ports", "spread ports against ip_local_port_range and ip_local_reserved_ports", evaluateSpreadPorts,
			"a port that another socket holds cannot be used for spread").fixable(),
		check("port", "other sockets on the tunnel's UDP port", evaluatePort,
			"two sockets cannot share the port: one fails to start, or takes the other's packets; the check needs a kernel with udp_diag (CONFIG_INET_UDP_DIAG)"),
		check("loop", "routes of the tunnels' messages to their peers", evaluateLoops,
			"a message that is routed into its own tunnel, or through a second tunnel back, would be encrypted again and again, so ropewalk drops it; it follows no tunnels of other programs").needsTunnel(),
		check("default-route", "routes and rules that take packets for a tunnel's routes past it", evaluateReplaced,
			"two routes to halves of 0.0.0.0/0, as of another VPN or of DHCP option 121, or a rule above the tunnel's, take the traffic past the tunnel").needsTunnel(),
		check("tunnel-settings", "addresses, routes, rules and MTU that `ropewalk up` has given a tunnel", evaluateSaved,
			"with a missing route or rule packets leave in cleartext: `ip link set down` removes routes, and a restart of systemd-networkd removes rules").needsTunnel(),
		check("mtu", "tunnel MTU against the path MTU to each peer", evaluatePathMTU,
			"inner packets that do not fit the path are fragmented or refused with ICMP errors, which costs more than all offloads gain").needsTunnel(),
	}
}

// The smallest net.core.rmem_max and wmem_max, in bytes: the socket buffers that the engine requests.
const (
	minRmem = 16 << 20
	minWmem = 2 << 20
)

func evaluateBuffers(f *facts.Facts, r *recorder) {
	have := f.Process.Capabilities
	rmem, rerr := number(f, facts.RmemMax)
	wmem, werr := number(f, facts.WmemMax)
	found := fmt.Sprintf("rmem_max %d, wmem_max %d bytes", rmem, wmem)
	switch {
	case errors.Join(rerr, werr) != nil:
		r.unknown("", errors.Join(rerr, werr))
	case rmem >= minRmem && wmem >= minWmem:
		r.ok("", "%s", found)
	case have.Err == nil && have.Value>>unix.CAP_NET_ADMIN&1 != 0:
		r.ok("", "%s, no limit (CAP_NET_ADMIN)", found)
	default:
		r.warn("", found, strings.Join(slices.Concat(raise("rmem_max", rmem, minRmem), raise("wmem_max", wmem, minWmem)), "\n"))
	}
}

// raise returns the command that raises a limit in net.core to at least the minimum, or none.
func raise(limit string, have, minimum int) []string {
	if have >= minimum {
		return nil
	}
	return []string{fmt.Sprintf("sysctl -w net.core.%s=%d", limit, minimum)}
}

// number returns an integer sysctl.
func number(f *facts.Facts, key string) (int, error) {
	v := f.Sysctls[key]
	if v.Err != nil {
		return 0, v.Err
	}
	n, err := strconv.Atoi(v.Value)
	if err != nil {
		return 0, fmt.Errorf("%s is %q", sysctlName(key), v.Value)
	}
	return n, nil
}

// The smallest backlog, in packets: Linux's default, and with RPS four TSO trains for each of 16 flows.
const (
	minBacklog    = 1000
	minBacklogRPS = 3000
)

func evaluateBacklog(f *facts.Facts, r *recorder) {
	have, err := number(f, facts.Backlog)
	if errors.Is(err, os.ErrNotExist) {
		r.ok("", "readable in the initial network namespace only")
		return
	}
	if err != nil {
		r.unknown("", err)
		return
	}
	want := minBacklog
	if slices.ContainsFunc(f.NICs, func(n facts.NIC) bool { return anyMask(n.RPS.Value) }) {
		want = minBacklogRPS
	}
	if have < want {
		r.warn("", fmt.Sprintf("%d packets", have), "",
			Change{Kind: Sysctl, Target: facts.Backlog, Before: strconv.Itoa(have), After: strconv.Itoa(want)})
		return
	}
	r.ok("", "%d packets", have)
}

func evaluateForward(f *facts.Facts, r *recorder) {
	v4, v6 := f.Sysctls[facts.Forward4], f.Sysctls[facts.Forward6]
	switch {
	case v4.Err != nil:
		r.unknown("", v4.Err)
	case v4.Value == "1" && v6.Err == nil && v6.Value == "0":
		r.warn("", "IPv4 forwarding on, IPv6 forwarding off", "sysctl -w net.ipv6.conf.all.forwarding=1   # if peers use IPv6 through this host")
	case v4.Value == "1":
		r.ok("", "on")
	default:
		r.ok("", "off")
	}
}

func evaluateBigTCP(f *facts.Facts, r *recorder) {
	forwards := f.Sysctls[facts.Forward4].Value == "1" || f.Sysctls[facts.Forward6].Value == "1"
	found := 0
	for _, d := range f.BigTCP.Value {
		if !forwards || slices.ContainsFunc(f.Tunnels, func(t facts.Tunnel) bool { return t.Name == d.Device }) {
			continue
		}
		found++
		names := slices.Sorted(maps.Keys(d.Limits))
		have, fix := "", "ip link set dev "+d.Device
		for _, name := range names {
			have += fmt.Sprintf(", %s %d", name, d.Limits[name])
			fix += fmt.Sprintf(" %s %d", name, hostnet.MaxTrain)
		}
		r.warn(d.Device, strings.TrimPrefix(have, ", "), fix+"   # if traffic from this device is forwarded into the tunnel")
	}
	switch {
	case f.BigTCP.Err != nil:
		r.unknown("", f.BigTCP.Err)
	case !forwards:
		r.ok("", "IP forwarding is off")
	case found == 0:
		r.ok("", "no device has BIG TCP")
	}
}

const rpStrict = "1"

// strict returns the devices whose rp_filter is strict. The kernel uses the greater of the
// device's value and the value of "all".
func strict(f *facts.Facts, devices []string) (found []string) {
	for _, device := range devices {
		if max(f.Sysctls[facts.RPFilter(device)].Value, f.Sysctls[facts.RPFilterAll()].Value) == rpStrict {
			found = append(found, device)
		}
	}
	return found
}

func evaluateRPFilter(f *facts.Facts, r *recorder) {
	if err := f.Sysctls[facts.RPFilterAll()].Err; err != nil {
		r.unknown("", err)
		return
	}
	var tunnels []string
	for _, t := range f.Tunnels {
		tunnels = append(tunnels, t.Name)
	}
	found := strict(f, tunnels)
	if len(f.Underlay) > 1 {
		found = append(found, strict(f, f.Underlay)...)
	}
	if len(found) == 0 {
		r.ok("", "no relevant device is strict")
		return
	}
	var fix []string
	for _, device := range found {
		fix = append(fix, fmt.Sprintf("sysctl -w %s=2", quote(sysctlName(facts.RPFilter(device)))))
	}
	r.warn("", "strict on "+strings.Join(found, ", "), strings.Join(fix, "\n")+"\n# if packets arrive on more than one device")
}

func evaluateSrcValidMark(f *facts.Facts, r *recorder) {
	value := f.Sysctls[facts.SrcValidMark]
	var marked []string
	for _, t := range f.Tunnels {
		if t.Mark != 0 {
			marked = append(marked, t.Name)
		}
	}
	devices := strict(f, f.Underlay)
	switch {
	case value.Err != nil:
		r.unknown("", value.Err)
	case len(marked) == 0:
		r.ok("", "no tunnel has a firewall mark")
	case value.Value == "0" && len(devices) > 0:
		r.fail("", fmt.Sprintf("src_valid_mark is 0 and rp_filter is strict on %s: packets from peers of %s (with fwmark) may be dropped",
			strings.Join(devices, ", "), strings.Join(marked, ", ")), "",
			Change{Kind: Sysctl, Target: facts.SrcValidMark, Before: "0", After: "1"})
	case value.Value == "0":
		r.ok("", "src_valid_mark is 0, and no rp_filter is strict")
	default:
		r.ok("", "on")
	}
}

// Fill levels of the conntrack table, in percent.
const (
	conntrackFull = 95
	conntrackHigh = 75
	percent       = 100
)

func evaluateConntrack(f *facts.Facts, r *recorder) {
	have, err := number(f, facts.ConntrackCount)
	if errors.Is(err, os.ErrNotExist) {
		r.ok("", "nf_conntrack is not loaded")
		return
	}
	most, maxErr := number(f, facts.ConntrackMax)
	if err := errors.Join(err, maxErr); err != nil {
		r.unknown("", err)
		return
	}
	found := fmt.Sprintf("%d of %d entries", have, most)
	ports := spreadPorts(f)[0].ports
	fix := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d\n# or exempt the tunnel from conntrack:\n%s", 2*most, noTrack(tunnelPort(f), ports.First, ports.Last))
	switch share := have * percent; {
	case most == 0:
		r.ok("", "%d entries, without a limit", have)
	case share >= conntrackFull*most:
		r.fail("", found, fix)
	case share >= conntrackHigh*most:
		r.warn("", found, fix)
	default:
		r.ok("", "%s", found)
	}
}

// noTrack returns the command that exempts a tunnel's packets from conntrack.
func noTrack(port, first, last uint16) string {
	return hostnet.NoTrackCommand(port, fmt.Sprintf("{ %d, %d-%d }", port, first, last)) +
		fmt.Sprintf("\n# a firewall that admits only replies has to admit UDP to port %d then", port)
}

// tunnelPort returns the port of the first tunnel, or the port given for a future tunnel.
func tunnelPort(f *facts.Facts) uint16 {
	for _, t := range f.Tunnels {
		if t.Port != 0 {
			return t.Port
		}
	}
	return f.Port
}

// portOf returns the port of a tunnel.
func portOf(f *facts.Facts, name string) uint16 {
	i := slices.IndexFunc(f.Tunnels, func(t facts.Tunnel) bool { return t.Name == name })
	return f.Tunnels[i].Port
}

func evaluateSpreadPorts(f *facts.Facts, r *recorder) {
	local := f.LocalPorts
	if local.Err != nil {
		r.unknown("", local.Err)
		return
	}
	reserved := slices.Clone(local.Value.Reserved)
	for _, use := range spreadPorts(f) {
		if use.off {
			r.ok(use.tunnel, "spread is off")
			continue
		}
		given := local.Value.EphemeralRange(use.ports.All())
		if given.Len() == 0 {
			r.ok(use.tunnel, "%s is outside ip_local_port_range (%s) or reserved", use.ports, local.Value.Range)
			continue
		}
		before := strings.TrimSpace(f.Sysctls[facts.ReservedPorts].Value)
		r.warn(use.tunnel, fmt.Sprintf("%s of %s is in ip_local_port_range and not reserved", given, use.ports), "",
			Change{Kind: Sysctl, Target: facts.ReservedPorts, Before: before, After: portList(append(reserved, given))})
	}
}

// portList formats ranges as the kernel does: sorted, adjacent ranges merged (proc_do_large_bitmap).
func portList(ranges []spread.Ports) string {
	ranges = slices.SortedFunc(slices.Values(ranges), func(a, b spread.Ports) int { return int(a.First) - int(b.First) })
	var merged []spread.Ports
	for _, r := range ranges {
		if n := len(merged); n > 0 && int(r.First) <= int(merged[n-1].Last)+1 {
			merged[n-1].Last = max(merged[n-1].Last, r.Last)
			continue
		}
		merged = append(merged, r)
	}
	var words []string
	for _, r := range merged {
		word := strconv.Itoa(int(r.First))
		if r.Last > r.First {
			word += "-" + strconv.Itoa(int(r.Last))
		}
		words = append(words, word)
	}
	return strings.Join(words, ",")
}

// portsUse is the source-port range that a tunnel spreads over.
type portsUse struct {
	tunnel string
	ports  spread.Ports
	off    bool
}

func spreadPorts(f *facts.Facts) []portsUse {
	var uses []portsUse
	for _, t := range f.Tunnels {
		if s := t.Stats.Value.Spread; t.Kind == facts.Ropewalk && s.FirstPort != 0 && s.LastPort >= s.FirstPort {
			uses = append(uses, portsUse{t.Name, spread.Ports{First: s.FirstPort, Last: s.LastPort}, s.Mode == config.SpreadOff})
		}
	}
	if len(uses) == 0 {
		uses = append(uses, portsUse{ports: f.SpreadPorts})
	}
	return uses
}
