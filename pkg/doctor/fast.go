// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/datapath"
	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
)

func fastChecks() []Check {
	return []Check{
		checkDaemons("fast-underlay", "by what way data messages go: UDP sockets or AF_XDP", judgeFastUnderlay,
			"AF_XDP goes past most of the kernel's network path, where the device can do it without copies"),
		checkDaemons("fast-rx-cpus", "whether processors share the kernel's part of receiving", judgeFastReceiveCPUs,
			"a peer that spreads fills as many as the NIC has queues; with fewer queues than processors, the others idle"),
		checkDaemons("fast-udp", "whether the daemon uses GSO and GRO on its sockets", judgeFastUDP,
			"without them each datagram is a system call"),
		checkDaemons("fast-tun", "whether it uses TSO and USO on its TUN", judgeFastTUN,
			"without them applications hand over single packets"),
		checkDaemons("fast-steer", "whether a program chooses its TUN queues", judgeFastSteer,
			"without it one lane may do all transmit work for a peer"),
		checkDaemons("fast-select", "whether source ports choose its receiving lanes", judgeFastSelect,
			"otherwise a hash does, which leaves lanes idle"),
		checkDaemons("fast-crew", "whether idle workers help lanes that stay behind", judgeFastCrew,
			"one flow that is more than a core can carry is sealed and opened by several"),
		checkDaemons("fast-spread", "towards how many peers it spreads", judgeFastSpread,
			"towards others all flows are one flow to the peer's NIC"),
		checkDaemons("fast-cipher", "the ChaCha20-Poly1305 that it runs", judgeFastCipher,
			"sealing and opening is the largest part of a lane's work"),
	}
}

// eachDaemon runs a judge for all tunnels that ropewalk serves and that are up.
func eachDaemon(judge func(*facts.Facts, string, *facts.Stats, *recorder)) func(*facts.Facts, *recorder) {
	return func(f *facts.Facts, r *recorder) {
		for i := range f.Tunnels {
			if t := &f.Tunnels[i]; t.Kind == facts.Ropewalk && t.Stats.Err == nil && t.Stats.Value.Up {
				judge(f, t.Name, &t.Stats.Value, r)
			}
		}
	}
}

func judgeFastUnderlay(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	way := s.Way
	if way == nil {
		r.ok(name, "UDP sockets: the daemon tells of no other way")
		return
	}
	why := cmp.Or(way.Reason, "the daemon does not say why")
	switch {
	case way.Way == config.UnderlayXDP && way.Lanes < len(s.Lanes):
		r.warn(name, fmt.Sprintf("AF_XDP on %s for %d of %d lanes: %s", way.Device, way.Lanes, len(s.Lanes), laneError(way, why)),
			fmt.Sprintf("ethtool -L %s combined %d   # a queue for each lane; or start the daemon with fewer", quote(way.Device), len(s.Lanes)))
	case way.Way == config.UnderlayXDP:
		r.ok(name, "AF_XDP on %s (%s)", way.Device, way.How)
	case way.Mode == config.UnderlayXDP:
		r.warn(name, "UDP sockets, although AF_XDP is configured: "+why, "see nic-driver, nic-xdp, memlock and capabilities")
	case way.Mode == config.UnderlayUDP:
		r.ok(name, "UDP sockets, as configured")
	default:
		r.ok(name, "UDP sockets: %s", why)
	}
}

func judgeFastReceiveCPUs(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	if s.Way == nil || s.Way.ReceiveCPUs == nil {
		r.ok(name, "off: not asked for")
		return
	}
	cpus := s.Way.ReceiveCPUs
	why := cmp.Or(cpus.Reason, "the daemon does not say why")
	switch {
	case len(cpus.CPUs) > 0 && 2*s.Way.Events[datapath.ClassifyChecksumPartial.String()] > s.Way.Events[datapath.ClassifyCPUMap.String()]:
		r.warn(name, fmt.Sprintf("CPUs %s, but many messages stay where they are: %s leaves checksums to this end", config.FormatCPUs(cpus.CPUs),
			"the other end of "+cpus.Device), "ethtool -K DEVICE tx off   # at the other end of "+quote(cpus.Device)+", if that is a veth; or here: "+
			"ropewalk set "+quote(name)+" rx-cpus off")
	case len(cpus.CPUs) > 0:
		r.ok(name, "CPUs %s, of what %s receives", config.FormatCPUs(cpus.CPUs), cpus.Device)
	case cpus.Mode.Auto:
		r.ok(name, "none: %s", why)
	default:
		r.warn(name, fmt.Sprintf("none, although %v are asked for: %s", cpus.Mode, why),
			"see nic-driver, nic-xdp and capabilities; or ropewalk set "+quote(name)+" rx-cpus off")
	}
}

// laneError is why the first lane without AF_XDP has none.
func laneError(way *config.UnderlayReport, otherwise string) string {
	for _, lane := range way.XDP {
		if lane.Error != "" {
			return lane.Error
		}
	}
	return otherwise
}

func judgeFastUDP(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	found := fmt.Sprintf("GSO %s, GRO %s", onOff(s.Underlay.GSO), onOff(s.Underlay.GRO))
	kernel := f.Kernel.UDP
	switch {
	case s.Underlay.GSO && s.Underlay.GRO:
		r.ok(name, "%s", found)
	case kernel.Err == nil && (kernel.Value.GSO && !s.Underlay.GSO || kernel.Value.GRO && !s.Underlay.GRO):
		r.warn(name, found+": the kernel has more, so it was given up when a device refused it (EIO)",
			checksumsOn(f.NICs)+fmt.Sprintf("ip link set dev %s down && ip link set dev %[1]s up", quote(name)))
	default:
		r.warn(name, found+": the kernel has no more", "see udp-gso and udp-gro")
	}
}

// checksumsOn turns on what a device must compute for UDP_SEGMENT to work.
func checksumsOn(nics []facts.NIC) string {
	var b strings.Builder
	for i := range nics {
		fmt.Fprintf(&b, "ethtool -K %s tx on\n", quote(nics[i].Name))
	}
	return b.String()
}

func judgeFastTUN(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	found := fmt.Sprintf("TSO %s, USO %s", onOff(s.TUN.TSO), onOff(s.TUN.USO))
	if s.TUN.TSO && s.TUN.USO {
		r.ok(name, "%s", found)
		return
	}
	r.warn(name, found+": the kernel took no more when the interface was made", "see tun-offloads; then start the daemon again")
}

func judgeFastSteer(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	switch {
	case s.TUN.Steer:
		r.ok(name, "on")
	case len(s.Lanes) < 2:
		r.ok(name, "off: there is one lane")
	case f.Kernel.Steer != nil:
		r.warn(name, fmt.Sprintf("off: %v", f.Kernel.Steer), "see tun-steer and capabilities")
	default:
		r.warn(name, "off, although the program loads here", "start the daemon with CAP_BPF; its log says why not")
	}
}

func judgeFastSelect(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	why := cmp.Or(s.Selection.Reason, "the daemon does not say why")
	switch {
	case s.Selection.ByPort && s.Selection.Reason == "":
		r.ok(name, "on")
	case s.Selection.ByPort:
		r.warn(name, "on, by the range of ports alone: "+why, "boot a kernel with commit 18fc650ccd7f (CVE-2026-52910)")
	case len(s.Lanes) < 2:
		r.ok(name, "off: there is one lane")
	case s.Spread.Mode == config.SpreadOff:
		r.ok(name, "off, as is spread")
	default:
		r.warn(name, "off: "+why, "start the daemon with CAP_NET_ADMIN; its log says more")
	}
}

// crewPatience is how many runs may be offered before it tells something that none was taken.
const crewPatience = 10_000

func judgeFastCrew(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	var offered, done uint64
	for _, l := range s.Lanes {
		offered += l.TxCrew.Offered + l.RxCrew.Offered
		done += l.TxCrew.Done + l.RxCrew.Done
	}
	cpus := len(f.CPU.Online.Value)
	switch {
	case s.Workers != nil && *s.Workers == 0 && cpus > 2:
		r.warn(name, fmt.Sprintf("off: no workers, on %d processors", cpus), "start the daemon with --workers auto")
	case offered >= crewPatience && done == 0:
		r.warn(name, fmt.Sprintf("%d runs were offered, and no worker had time", offered), "give the machine more processors, or the daemon fewer lanes")
	case offered > 0:
		r.ok(name, "%d of %d offered runs done by workers", done, offered)
	case cpus <= 2:
		r.ok(name, "off: with two processors the lanes need both")
	default:
		r.ok(name, "not needed so far")
	}
}

func judgeFastSpread(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	peers, active, why := s.Spread.Peers, 0, ""
	for _, key := range slices.Sorted(maps.Keys(peers)) {
		if peers[key].Active {
			active++
		} else if why == "" {
			why = peers[key].Reason
		}
	}
	found := fmt.Sprintf("towards %d of %d peers", active, len(peers))
	if why != "" {
		found += "; not towards one of them: " + why
	}
	switch {
	case s.Spread.Mode == config.SpreadOff:
		r.warn(name, "off by configuration", "ropewalk run --spread auto, or Spread = auto")
	case len(peers) > 0 && active == 0:
		r.warn(name, found, "run ropewalk at the peer, too, without a NAT in between; `ropewalk show "+quote(name)+" --lanes` tells of each")
	default:
		r.ok(name, "%s", found)
	}
}

func judgeFastCipher(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	switch cipher := cmp.Or(s.Cipher, f.Cipher); {
	case cipher == "":
		r.unknown(name, errors.New("the daemon does not say"))
	case cipher == f.Fallback:
		r.warn(name, cipher+": packet by packet", "see cpu-cipher")
	case s.Cipher == "":
		r.ok(name, "%s, if it is of this version", cipher)
	default:
		r.ok(name, "%s", cipher)
	}
}
