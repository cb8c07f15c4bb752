// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

func fastChecks() []Check {
	return []Check{
		checkDaemons("fast-underlay", "underlay mode: UDP sockets or AF_XDP", evaluateFastUnderlay,
			"AF_XDP with zero-copy bypasses most of the kernel network stack"),
		checkDaemons("fast-udp", "UDP GSO and GRO in use on the daemon's sockets", evaluateFastUDP,
			"without them each datagram costs a system call"),
		checkDaemons("fast-tun", "TSO and USO in use on the daemon's TUN device", evaluateFastTUN,
			"without them the TUN device passes single packets"),
		checkDaemons("tun-queue", "packets that the kernel dropped in front of the lanes", evaluateTUNQueue,
			"packets that find the TUN's queue full are lost before the tunnel's own queues"),
		checkDaemons("fast-steer", "TUN steering eBPF program in use", evaluateFastSteer,
			"without it one lane may do all transmit work for a peer"),
		checkDaemons("fast-select", "receive-socket selection by source port (SO_ATTACH_REUSEPORT_CBPF)", evaluateFastSelect,
			"receive-socket selection by kernel hash may leave some lanes idle"),
		checkDaemons("fast-workers", "idle workers helping busy lanes", evaluateFastWorkers,
			"workers let several CPUs encrypt and decrypt one flow that exceeds one core"),
		checkDaemons("fast-spread", "number of peers with spread active", evaluateFastSpread,
			"without spread the peer's NIC sees all flows as one flow"),
		checkDaemons("handshakes", "peers that do not answer handshake initiations", evaluateHandshakes,
			"without a handshake there is no session, and packets for the peer are dropped"),
		checkDaemons("post-quantum", "peers whose sessions should have post-quantum keys, and have none", evaluatePostQuantum,
			"without such a key, traffic that is recorded now can be read once Curve25519 is broken"),
		checkDaemons("stalls", "lanes, packets and AF_XDP sockets that made no progress", evaluateStalls,
			"a lane or socket without progress carries no packets"),
		checkDaemons("path-mtu", "path MTU to each peer, by probes between two ropewalks (RFC 8899), the route, and ICMP errors", evaluateProbedMTU,
			"larger inner packets are fragmented or answered with ICMP, and their sender must lower its packet size"),
		checkDaemons("fast-cipher", "ChaCha20-Poly1305 implementation in use", evaluateFastCipher,
			"encryption and decryption take most of a lane's CPU time"),
	}
}

// forEachDaemon calls evaluate for each ropewalk tunnel that is up.
func forEachDaemon(evaluate func(*facts.Facts, string, *facts.Stats, *recorder)) func(*facts.Facts, *recorder) {
	return func(f *facts.Facts, r *recorder) {
		for i := range f.Tunnels {
			if t := &f.Tunnels[i]; t.Kind == facts.Ropewalk && t.Stats.Err == nil && t.Stats.Value.Up {
				evaluate(f, t.Name, &t.Stats.Value, r)
			}
		}
	}
}

func evaluateFastUnderlay(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	underlay := s.UnderlayStatus
	if underlay == nil {
		r.ok(name, "UDP sockets: the daemon reports no underlay mode")
		return
	}
	why := cmp.Or(underlay.Reason, "the daemon reports no reason")
	switch {
	case underlay.Path == config.UnderlayXDP && underlay.Lanes < len(s.Lanes):
		r.warn(name, fmt.Sprintf("AF_XDP on %s for %d of %d lanes: %s", underlay.Device, underlay.Lanes, len(s.Lanes), laneError(underlay, why)),
			fmt.Sprintf("ethtool -L %s combined %d   # one queue per lane; or start the daemon with fewer lanes", quote(underlay.Device), len(s.Lanes)))
	case underlay.Path == config.UnderlayXDP:
		r.ok(name, "AF_XDP on %s (%s)", underlay.Device, underlay.How)
	case underlay.Mode == config.UnderlayXDP:
		r.warn(name, "UDP sockets, although AF_XDP is configured: "+why, "see nic-driver, nic-xdp, memlock and capabilities")
	case underlay.Mode == config.UnderlayUDP:
		r.ok(name, "UDP sockets, as configured")
	default:
		r.ok(name, "UDP sockets: %s", why)
	}
}

// laneError returns why the first lane without AF_XDP does not use it.
func laneError(underlay *config.UnderlayReport, fallback string) string {
	for _, lane := range underlay.XDP {
		if lane.Error != "" {
			return lane.Error
		}
	}
	return fallback
}

func evaluateFastUDP(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	found := fmt.Sprintf("GSO %s, GRO %s", onOff(s.Underlay.GSO), onOff(s.Underlay.GRO))
	kernel := f.Kernel.UDP
	switch n, lost := s.Underlay.DestinationsWithoutGSO, s.Underlay.DestinationsLosingTrains; {
	case lost > 0:
		r.warn(name, fmt.Sprintf("%s, %s lose trains: they are sent single datagrams, which arrive. "+
			"The kernel, a device or the hypervisor divides trains wrongly (Linux 7.0 to 7.1-rc4, commit b10b446)", found, term.Count(lost, "destination")),
			"boot a kernel with commits 78effd8 and 5f17ae0, here and on the hypervisor, or:\n"+segmentationOff(f.NICs))
	case n > 0:
		r.warn(name, fmt.Sprintf("%s, the kernel refuses GSO to %s. Their device returned EIO: no transmit checksums, or IPsec", found, term.Count(n, "destination")),
			strings.TrimSuffix(checksumsOn(f.NICs), "\n"))
	case s.Underlay.GSO && s.Underlay.GRO:
		r.ok(name, "%s", found)
	case kernel.Err == nil && (kernel.Value.GSO && !s.Underlay.GSO || kernel.Value.GRO && !s.Underlay.GRO):
		r.warn(name, found+": supported by the kernel, but disabled after a device returned EIO",
			checksumsOn(f.NICs)+fmt.Sprintf("ip link set dev %s down && ip link set dev %[1]s up", quote(name)))
	default:
		r.warn(name, found+": not supported by the kernel", "see udp-gso and udp-gro")
	}
}

// checksumsOn returns commands that enable transmit checksums, which UDP_SEGMENT needs.
func checksumsOn(nics []facts.NIC) string {
	var b strings.Builder
	for i := range nics {
		fmt.Fprintf(&b, "ethtool -K %s tx on\n", quote(nics[i].Name))
	}
	return b.String()
}

// segmentationOff returns commands that have the kernel divide trains instead of the devices.
func segmentationOff(nics []facts.NIC) string {
	var commands []string
	for i := range nics {
		commands = append(commands, fmt.Sprintf("ethtool -K %s tx-udp-segmentation off", quote(nics[i].Name)))
	}
	return strings.Join(commands, "\n")
}

func evaluateFastTUN(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	found := fmt.Sprintf("TSO %s, USO %s", onOff(s.TUN.TSO), onOff(s.TUN.USO))
	if s.TUN.TSO && s.TUN.USO {
		r.ok(name, "%s", found)
		return
	}
	r.warn(name, found+": the kernel refused the rest when the interface was created", "see tun-offloads, then restart the daemon")
}

// maxTUNQueueDrops is the ratio of packets sent to those dropped from which the drops are no fault.
const maxTUNQueueDrops = 1000

func evaluateTUNQueue(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	drops, sent := s.Drops[drop.TXTUNQueue.String()], uint64(0)
	for i := range s.Lanes {
		sent += s.Lanes[i].TxPackets
	}
	found := fmt.Sprintf("%d dropped, %d sent", drops, sent)
	if drops*maxTUNQueueDrops <= sent {
		r.ok(name, "%s", found)
		return
	}
	r.warn(name, found, fmt.Sprintf("give the lanes CPU time (cpu-…), or ip link set dev %s txqueuelen 10000", quote(name)))
}

func evaluateFastSteer(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	switch {
	case s.TUN.Steer:
		r.ok(name, "on")
	case len(s.Lanes) < 2:
		r.ok(name, "off: there is one lane")
	case f.Kernel.Steer != nil:
		r.warn(name, fmt.Sprintf("off: %v", f.Kernel.Steer), "see tun-steer and capabilities")
	default:
		r.warn(name, "off, although the program loads here", "start the daemon with CAP_BPF; see its log for the error")
	}
}

func evaluateFastSelect(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	why := cmp.Or(s.Selection.Reason, "the daemon reports no reason")
	switch {
	case s.Selection.ByPort && s.Selection.Reason == "":
		r.ok(name, "on")
	case s.Selection.ByPort:
		r.warn(name, "on, by port range only: "+why, "boot a kernel with commit 18fc650ccd7f (CVE-2026-52910)")
	case len(s.Lanes) < 2:
		r.ok(name, "off: there is one lane")
	case s.Spread.Mode == config.SpreadOff:
		r.ok(name, "off, because spread is off")
	default:
		r.warn(name, "off: "+why, "start the daemon with CAP_NET_ADMIN; see its log for the error")
	}
}

// minSubmittedJobs is the number of submitted jobs from which zero completions is a problem.
const minSubmittedJobs = 10_000

func evaluateFastWorkers(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	var submitted, done uint64
	for _, l := range s.Lanes {
		submitted += l.TxWorkers.Submitted + l.RxWorkers.Submitted
		done += l.TxWorkers.Done + l.RxWorkers.Done
	}
	cpus := len(f.CPU.Online.Value)
	switch {
	case s.Workers != nil && *s.Workers == 0 && cpus > 2:
		r.warn(name, fmt.Sprintf("off: no workers, on %d CPUs", cpus), "start the daemon with --workers auto")
	case submitted >= minSubmittedJobs && done == 0:
		r.warn(name, fmt.Sprintf("%d jobs submitted, none taken by a worker", submitted), "add CPUs to the machine, or start the daemon with fewer lanes")
	case submitted > 0:
		r.ok(name, "%d of %d submitted jobs done by workers", done, submitted)
	case cpus <= 2:
		r.ok(name, "off: with two CPUs the lanes need both")
	default:
		r.ok(name, "not needed yet")
	}
}

// evaluateHandshakes reports the peers that do not answer, errors of this host first.
func evaluateHandshakes(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	failing := s.FailingHandshakes
	if len(failing) == 0 {
		r.ok(name, "no peer leaves initiations unanswered")
		return
	}
	keys := slices.Sorted(maps.Keys(failing))
	worst := keys[0]
	for _, key := range keys {
		if failing[key].Error != "" {
			worst = key
			break
		}
	}
	advice := handshakeAdvice(name, "", failing[worst]) + "; ropewalk doctor --peer " + worst
	if failing[worst].Error != "" {
		advice = "ip route get ADDRESS, with the address of the endpoint in `ropewalk show " + quote(name) + "`; a firewall on this host may also refuse to send"
	}
	r.warn(name, fmt.Sprintf("%d of %d peers do not answer: peer %s, %s", len(failing), max(len(s.Spread.Peers), len(failing)), worst, failing[worst]), advice)
}

// evaluatePostQuantum reports peers whose sessions should have keys of post-quantum exchanges, and have none.
func evaluatePostQuantum(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	if s.PostQuantum == nil {
		return
	}
	active, wanted, stale := 0, 0, ""
	required, early := false, s.Drops[drop.RXNotPostQuantum.String()]
	blocked, downgraded := "", ""
	for _, key := range slices.Sorted(maps.Keys(s.PostQuantum.Peers)) {
		p := s.PostQuantum.Peers[key]
		if p.Policy != config.PostQuantumOff {
			wanted++
		}
		required = required || p.Policy == config.PostQuantumRequired
		switch {
		case p.Active:
			active++
			if p.Stale {
				stale = key
			}
		case p.Blocked:
			blocked = key
		case p.Downgraded:
			downgraded = key
		}
	}
	show := "ropewalk show " + quote(name)
	switch {
	case blocked != "":
		r.warn(name, fmt.Sprintf("no data to or from peer %s: post-quantum keys are required here, %s", blocked, s.PostQuantum.Peers[blocked].Reason),
			"set PostQuantum = required or auto at the peer too, or auto here; "+show)
	case required && early > 0:
		r.warn(name, fmt.Sprintf("since the start of the daemon, %d packets in sessions without a post-quantum key were dropped; it may be from a change", early),
			"if more come, set PostQuantum = required at the peers too: with auto they send first packets in such sessions; "+show)
	case downgraded != "":
		r.warn(name, fmt.Sprintf("sessions with peer %s had post-quantum keys, and have none: %s", downgraded, s.PostQuantum.Peers[downgraded].Reason),
			"the version and PostQuantum of the peer; if it is another WireGuard now on purpose: ropewalk set "+quote(name)+" peer "+downgraded+" post-quantum forget")
	case stale != "":
		r.warn(name, fmt.Sprintf("the post-quantum key in use with peer %s is %.0f s old", stale, s.PostQuantum.Peers[stale].Age), "exchanges fail: "+show+"; ropewalk log "+quote(name)+" debug")
	case wanted == 0:
		r.ok(name, "off")
	default:
		r.ok(name, "active for %d of %d peers", active, wanted)
	}
}

// evaluateStalls reports what has stalled since the daemon started.
func evaluateStalls(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	xdp := uint64(0)
	if s.UnderlayStatus != nil {
		for i := range s.UnderlayStatus.XDP {
			xdp += s.UnderlayStatus.XDP[i].Stalls
		}
	}
	st := &s.Stalls
	lanes := st.Transmit + st.Receive + st.Queued
	switch {
	case len(st.Lanes) > 0:
		r.warn(name, "lanes make no progress: "+strings.Join(st.Lanes, ", "), "systemctl restart ropewalk@"+quote(name)+"   # and report it, with a goroutine dump: kill -QUIT")
	case len(st.Queues) > 0:
		r.warn(name, fmt.Sprintf("send buffers that have been full for a minute, of lanes: %d", st.Queues),
			"ip -s link; tc -s qdisc   # the network device has stopped sending; if it sends: systemctl restart ropewalk@"+quote(name))
	case xdp > 0:
		r.warn(name, fmt.Sprintf("AF_XDP sockets whose frames the device did not send, and which were replaced: %d", xdp),
			"ropewalk set "+quote(name)+" underlay udp   # if the number grows")
	case lanes+st.Staged > 0:
		r.warn(name, fmt.Sprintf("stalls since the daemon started, all over: %d of lanes, %d of packets that waited for a session", lanes, st.Staged),
			"report it, with the output of `ropewalk log "+quote(name)+"`")
	default:
		r.ok(name, "none")
	}
}

func evaluateFastSpread(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	peers, active, blocked, why := s.Spread.Peers, 0, 0, ""
	for _, key := range slices.Sorted(maps.Keys(peers)) {
		if len(peers[key].Blocked) > 0 {
			blocked++
		}
		if peers[key].Active {
			active++
		} else if why == "" {
			why = peers[key].Reason
		}
	}
	if len(peers) > 0 && len(s.FailingHandshakes) == len(peers) {
		r.ok(name, "no peer has a session, see handshakes")
		return
	}
	// conntrack gives ports of the tunnel to containers that have sent from them to a peer before.
	masquerades := "\n# if this host masquerades containers, exempt the tunnel from conntrack:\n" + noTrack(portOf(f, name), s.Spread.FirstPort, s.Spread.LastPort)
	found := fmt.Sprintf("active for %d of %d peers", active, len(peers))
	if why != "" {
		found += "; first reason: " + why
	}
	switch {
	case s.Spread.Mode == config.SpreadOff:
		r.warn(name, "disabled by configuration", "ropewalk run --spread auto, or Spread = auto")
	case len(peers) > 0 && active == 0:
		r.warn(name, found, "run ropewalk on the peer without a NAT in between; `ropewalk show "+quote(name)+" --lanes` lists the reasons"+masquerades)
	case blocked > 0:
		r.warn(name, fmt.Sprintf("%s; to %d of them the path drops messages from some source ports", found, blocked),
			"admit UDP from the ports that `ropewalk show "+quote(name)+" --lanes --json` lists as blocked, in firewalls on the path"+masquerades)
	default:
		r.ok(name, "%s", found)
	}
}

// evaluateProbedMTU reports the peer with the smallest path MTU.
func evaluateProbedMTU(_ *facts.Facts, name string, s *facts.Stats, r *recorder) {
	confirmed, known, silent, small := 0, 0, 0, 0
	var least config.PathMTU
	narrowest := ""
	for _, key := range slices.Sorted(maps.Keys(s.PathMTU)) {
		p := s.PathMTU[key]
		switch p.State {
		case config.PathMTUConfirmed:
			confirmed++
		case config.PathMTURoute, config.PathMTUHost, config.PathMTUICMP:
			known++
		case config.PathMTUUnreachable:
			silent++
		}
		if p.InnerBytes > 0 {
			small++
			if least.InnerBytes == 0 || p.InnerBytes < least.InnerBytes {
				least, narrowest = p, key
			}
		}
	}
	switch {
	case least.TooSmallForIPv6():
		r.warn(name, fmt.Sprintf("to peer %s: %s, whose packets of 1280 bytes leave in fragments", narrowest, least),
			"raise the MTU of the path to 1340 bytes or more (IPv6 outside: 1360)")
	case small > 0:
		r.warn(name, fmt.Sprintf("smaller than the tunnel's MTU needs for %d of %d peers, the least is for peer %s: %s", small, len(s.PathMTU), narrowest, least),
			fmt.Sprintf("ip link set dev %s mtu %d", quote(name), least.InnerBytes))
	case silent > 0:
		r.warn(name, fmt.Sprintf("no probe of any size is answered by %d of %d peers", silent, len(s.PathMTU)),
			"look for a firewall on the path that drops UDP with Don't Fragment")
	default:
		r.ok(name, "confirmed by probes for %d of %d peers, taken from the route or an ICMP error for %d", confirmed, len(s.PathMTU), known)
	}
}

func evaluateFastCipher(f *facts.Facts, name string, s *facts.Stats, r *recorder) {
	switch cipher := cmp.Or(s.Cipher, f.Cipher); {
	case cipher == "":
		r.unknown(name, errors.New("the daemon does not report it"))
	case cipher == f.Fallback && !hasVectorCipher(f):
		r.warn(name, cipher+": one packet at a time", "see cpu-cipher")
	case s.Cipher == "":
		r.ok(name, "%s, assuming the daemon has this version", cipher)
	default:
		r.ok(name, "%s", cipher)
	}
}
