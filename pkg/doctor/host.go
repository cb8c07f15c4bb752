// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

func hostChecks() []Check {
	return []Check{
		check("socket-buffers", "net.core.rmem_max and wmem_max", judgeBuffers,
			"they bound socket buffers, which must hold whole trains, of a process without CAP_NET_ADMIN"),
		check("backlog", "net.core.netdev_max_backlog", judgeBacklog,
			"packets that RPS or a virtual device hands to another processor wait there, and are dropped when it is full").fixable(),
		check("ip-forward", "whether this host forwards packets", judgeForward,
			"a host whose peers reach others through it must; one that only ends tunnels need not"),
		check("rp-filter", "reverse path filters of underlay and tunnels", judgeRPFilter,
			"a strict one drops what arrives by another device than the answer would leave by"),
		check("src-valid-mark", "src_valid_mark, for tunnels with a mark", judgeSrcValidMark,
			"with a strict filter and without it, peers' packets are dropped when all traffic is routed into the tunnel").fixable(),
		check("conntrack", "how full the table of connections is", judgeConntrack,
			"each source port of a spread tunnel is an entry, and new ones are dropped when the table is full"),
		check("spread-ports", "whether the kernel gives the spread ports to others", judgeSpreadPorts,
			"a port that another socket has been given cannot be spread over").fixable(),
		check("port", "who else listens on the tunnel's port", judgePort,
			"two cannot share it: one of them does not start, or takes the other's packets"),
		check("mtu", "the tunnel's MTU against the path to each peer", judgeMTUChain,
			"outer packets that do not fit are fragmented, which costs more than all offloads bring").running(),
	}
}

// The least that net.core.rmem_max and wmem_max should be, in bytes: what the engine asks for.
const (
	rmemWanted = 1 << 20
	wmemWanted = 7 << 20
)

func judgeBuffers(f *facts.Facts, r *recorder) {
	have := f.Process.Capabilities
	rmem, rerr := number(f, facts.RmemMax)
	wmem, werr := number(f, facts.WmemMax)
	found := fmt.Sprintf("rmem_max %d, wmem_max %d bytes", rmem, wmem)
	switch {
	case errors.Join(rerr, werr) != nil:
		r.unknown("", errors.Join(rerr, werr))
	case rmem >= rmemWanted && wmem >= wmemWanted:
		r.ok("", "%s", found)
	case have.Err == nil && have.Value>>unix.CAP_NET_ADMIN&1 != 0:
		r.ok("", "%s, which CAP_NET_ADMIN goes beyond", found)
	default:
		r.warn("", found, fmt.Sprintf("sysctl -w net.core.rmem_max=%d\nsysctl -w net.core.wmem_max=%d", rmemWanted, wmemWanted))
	}
}

// number reads a sysctl.
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

// The least backlog, in packets: Linux's default, and with RPS as much as four TSO trains for each of 16 flows.
const (
	backlogWanted    = 1000
	backlogWantedRPS = 3000
)

func judgeBacklog(f *facts.Facts, r *recorder) {
	have, err := number(f, facts.Backlog)
	if errors.Is(err, os.ErrNotExist) {
		r.ok("", "it is set in the host's first network namespace, not in this one")
		return
	}
	if err != nil {
		r.unknown("", err)
		return
	}
	want := backlogWanted
	if slices.ContainsFunc(f.NICs, func(n facts.NIC) bool { return anyMask(n.RPS.Value) }) {
		want = backlogWantedRPS
	}
	if have < want {
		r.warn("", fmt.Sprintf("%d packets", have), "",
			Change{Kind: Sysctl, Target: facts.Backlog, Before: strconv.Itoa(have), After: strconv.Itoa(want)})
		return
	}
	r.ok("", "%d packets", have)
}

func judgeForward(f *facts.Facts, r *recorder) {
	v4, v6 := f.Sysctls[facts.Forward4], f.Sysctls[facts.Forward6]
	switch {
	case v4.Err != nil:
		r.unknown("", v4.Err)
	case v4.Value == "1" && v6.Err == nil && v6.Value == "0":
		r.warn("", "IPv4 is forwarded, IPv6 is not", "sysctl -w net.ipv6.conf.all.forwarding=1   # if peers use IPv6 through this host")
	case v4.Value == "1":
		r.ok("", "it forwards")
	default:
		r.ok("", "it does not forward")
	}
}

const rpStrict = "1"

// strict tells whether the filter of a device is: the greater of its own and that of all counts.
func strict(f *facts.Facts, device string) bool {
	return max(f.Sysctls[facts.RPFilter(device)].Value, f.Sysctls[facts.RPFilterAll()].Value) == rpStrict
}

func judgeRPFilter(f *facts.Facts, r *recorder) {
	if err := f.Sysctls[facts.RPFilterAll()].Err; err != nil {
		r.unknown("", err)
		return
	}
	var found []string
	for _, t := range f.Tunnels {
		if strict(f, t.Name) {
			found = append(found, t.Name)
		}
	}
	if several := len(f.NICs) > 1; several {
		for _, n := range f.NICs {
			if strict(f, n.Name) {
				found = append(found, n.Name)
			}
		}
	}
	if len(found) == 0 {
		r.ok("", "none is in the way")
		return
	}
	var mend []string
	for _, device := range found {
		mend = append(mend, fmt.Sprintf("sysctl -w %s=2", quote(sysctlName(facts.RPFilter(device)))))
	}
	r.warn("", "strict on "+strings.Join(found, ", "), strings.Join(mend, "\n")+"\n# if packets do arrive by more than one device")
}

func judgeSrcValidMark(f *facts.Facts, r *recorder) {
	value := f.Sysctls[facts.SrcValidMark]
	var marked []string
	for _, t := range f.Tunnels {
		if t.Mark != 0 {
			marked = append(marked, t.Name)
		}
	}
	isStrict := slices.ContainsFunc(f.NICs, func(n facts.NIC) bool { return strict(f, n.Name) })
	switch {
	case value.Err != nil:
		r.unknown("", value.Err)
	case len(marked) == 0:
		r.ok("", "no tunnel has a mark")
	case value.Value == "0" && isStrict:
		r.fail("", "off, with a strict filter below "+strings.Join(marked, ", "), "",
			Change{Kind: Sysctl, Target: facts.SrcValidMark, Before: "0", After: "1"})
	case value.Value == "0":
		r.ok("", "off, and no filter is strict")
	default:
		r.ok("", "on")
	}
}

// Shares of conntrack's table, in percent.
const (
	conntrackFull  = 95
	conntrackMuch  = 75
	conntrackWhole = 100
)

func judgeConntrack(f *facts.Facts, r *recorder) {
	have, err := number(f, facts.ConntrackCount)
	if errors.Is(err, os.ErrNotExist) {
		r.ok("", "connections are not tracked")
		return
	}
	most, maxErr := number(f, facts.ConntrackMax)
	if err := errors.Join(err, maxErr); err != nil {
		r.unknown("", err)
		return
	}
	found := fmt.Sprintf("%d of %d entries", have, most)
	mend := fmt.Sprintf("sysctl -w net.netfilter.nf_conntrack_max=%d\n# or do not track the tunnel:\nnft 'add table inet ropewalk; "+
		"add chain inet ropewalk raw { type filter hook prerouting priority raw; }; add rule inet ropewalk raw udp dport %d notrack'",
		2*most, tunnelPort(f))
	switch share := have * conntrackWhole; {
	case most == 0:
		r.ok("", "%d entries, without a limit", have)
	case share >= conntrackFull*most:
		r.fail("", found, mend)
	case share >= conntrackMuch*most:
		r.warn("", found, mend)
	default:
		r.ok("", "%s", found)
	}
}

// tunnelPort is that of the first tunnel, or of the one to come.
func tunnelPort(f *facts.Facts) uint16 {
	for _, t := range f.Tunnels {
		if t.Port != 0 {
			return t.Port
		}
	}
	return f.Port
}

func judgeSpreadPorts(f *facts.Facts, r *recorder) {
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
		given := local.Value.Among(use.ports.All())
		if given.Len() == 0 {
			r.ok(use.tunnel, "%s are not among those that the kernel gives away (%s)", use.ports, local.Value.Range)
			continue
		}
		before := strings.TrimSpace(f.Sysctls[facts.ReservedPorts].Value)
		r.warn(use.tunnel, fmt.Sprintf("the kernel gives %s of %s to any socket", given, use.ports), "",
			Change{Kind: Sysctl, Target: facts.ReservedPorts, Before: before, After: portList(append(reserved, given))})
	}
}

// portList is a list of ranges as the kernel writes it: in order, and what touches in one (proc_do_large_bitmap).
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

// portsUse is a range that a tunnel spreads over.
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
