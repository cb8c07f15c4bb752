// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func nicChecks() []Check {
	return []Check{
		check("nic-driver", "driver, and its support for native XDP and AF_XDP zero-copy", evaluateDrivers,
			"AF_XDP can be faster than UDP sockets only with native XDP and zero-copy"),
		checkNICs("nic-underlay", "measurement of AF_XDP against UDP sockets", evaluateMeasurement,
			"Underlay = auto uses AF_XDP only on a device where it was measured to be better"),
		checkNICs("nic-xdp", "attached XDP program", evaluateXDP,
			"a device takes one XDP program: if another one is attached, ropewalk cannot attach its own"),
		checkNICs("nic-channels", "receive queues (ethtool channels) against CPUs", evaluateChannels,
			"each receive queue lets one more CPU process received packets"),
		checkNICs("nic-rings", "receive ring size", evaluateRings,
			"bursts arrive faster than one CPU drains the ring: a short ring drops their last packets"),
		checkNICs("nic-coalescing", "interrupt coalescing delay (rx-usecs)", evaluateCoalescing,
			"the delay adds to every round trip through the tunnel"),
		checkNICs("nic-rss", "RSS hash function, key and indirection table", evaluateRSS,
			"ropewalk computes from them, for the peers that send to this host, which source ports fill its queues evenly"),
		checkNICs("nic-udp-hash", "RSS hash fields for UDP (rx-flow-hash)", evaluateUDPHash,
			"spread gives each flow its own source port; a NIC that does not hash ports puts all flows on one queue").fixable(),
		checkNICs("nic-gro", "GRO, rx-udp-gro-forwarding and rx-gro-list", evaluateGRO,
			"GRO merges received packets into trains; forwarded UDP needs rx-udp-gro-forwarding, which rx-gro-list overrides").fixable(),
		checkNICs("nic-mtu", "MTU of the underlay device", evaluateMTU,
			"below 1360 bytes the tunnel cannot carry the minimum IPv6 MTU of 1280 bytes"),
		checkNICs("nic-numa", "NUMA node of the NIC", evaluateNUMA,
			"lanes on another NUMA node read every packet across the interconnect"),
	}
}

// forEachNIC calls evaluate for each underlay device.
func forEachNIC(evaluate func(*facts.Facts, *facts.NIC, *recorder)) func(*facts.Facts, *recorder) {
	return func(f *facts.Facts, r *recorder) {
		for i := range f.NICs {
			evaluate(f, &f.NICs[i], r)
		}
	}
}

// driverError records a failed driver query: OK if the driver does not support it, else unknown.
func driverError(n *facts.NIC, r *recorder, err error) {
	if errors.Is(err, unix.EOPNOTSUPP) {
		r.ok(n.Name, "not supported by the driver")
		return
	}
	r.unknown(n.Name, err)
}

func evaluateDrivers(f *facts.Facts, r *recorder) {
	if len(f.NICs) == 0 {
		r.ok("", "no default route and no route to a peer: pass the device with --device")
	}
	forEachNIC(evaluateDriver)(f, r)
}

func evaluateDriver(_ *facts.Facts, n *facts.NIC, r *recorder) {
	name := n.Driver.Value
	if n.Driver.Err != nil || name == "" {
		name = "unknown driver"
	}
	if n.Speed > 0 && !n.Virtual { // a virtual device reports an arbitrary speed
		name += fmt.Sprintf(", %g Gbit/s", float64(n.Speed)/1000)
	}
	if n.Driver.Value == "ena" { // AWS, "Amazon EC2 instance network bandwidth"
		name += ", at most 5 Gbit/s for each 5-tuple outside a cluster placement group"
	}
	can := n.XDPDriver
	switch {
	case can.Err != nil && !errors.Is(can.Err, errors.ErrUnsupported):
		r.unknown(n.Name, can.Err)
	case can.Err != nil:
		r.ok(n.Name, "%s (%s); XDP features unknown before Linux 6.3", name, n.Why)
	case can.Value.ZeroCopy:
		r.ok(n.Name, "%s (%s): native XDP, AF_XDP zero-copy", name, n.Why)
	case can.Value.Native:
		r.ok(n.Name, "%s (%s): native XDP, AF_XDP copy mode", name, n.Why)
	case n.Virtual:
		r.ok(n.Name, "%s (%s): virtual device without native XDP", name, n.Why)
	default:
		r.warn(n.Name, fmt.Sprintf("%s (%s): no native XDP", name, n.Why), "keep AF_XDP off on this NIC: UDP sockets are fastest here")
	}
}

func evaluateMeasurement(_ *facts.Facts, n *facts.NIC, r *recorder) {
	measure := fmt.Sprintf("ropewalk bench underlay %s --to HOST --key FILE", quote(n.Name))
	err := n.Measured.Err
	switch {
	case n.Above != "":
		r.ok(n.Name, "Underlay = auto uses UDP sockets: packets leave by %s, which is above %s", n.Above, n.Name)
	case n.NoXDP != "":
		r.ok(n.Name, "Underlay = auto uses UDP sockets: %s", n.NoXDP)
	case err == nil && n.Measured.Value.Better():
		r.ok(n.Name, "Underlay = auto uses AF_XDP: %v", &n.Measured.Value)
	case err == nil:
		r.ok(n.Name, "Underlay = auto uses UDP sockets: %v", &n.Measured.Value)
	case errors.Is(err, measurement.ErrStale):
		r.warn(n.Name, fmt.Sprintf("Underlay = auto uses UDP sockets: %v", err), measure)
	case !errors.Is(err, measurement.ErrNone):
		r.unknown(n.Name, err)
	case n.XDPDriver.Value.ZeroCopy:
		r.ok(n.Name, "Underlay = auto uses UDP sockets: AF_XDP with zero-copy is possible, but was not measured; to measure it: %s", measure)
	default:
		r.ok(n.Name, "Underlay = auto uses UDP sockets: AF_XDP was not measured, and it would copy each packet")
	}
}

func evaluateXDP(_ *facts.Facts, n *facts.NIC, r *recorder) {
	x := n.XDP.Value
	mode := "native"
	if x.Generic {
		mode = "generic"
	}
	switch {
	case n.XDP.Err != nil:
		r.unknown(n.Name, n.XDP.Err)
	case !x.Attached:
		r.ok(n.Name, "no program")
	case x.Name == "gather_xdp" || x.Name == "classify":
		r.ok(n.Name, "ropewalk's program %s (%s mode)", x.Name, mode)
	default:
		r.warn(n.Name, fmt.Sprintf("foreign program %d %q (%s mode)", x.ID, x.Name, mode),
			fmt.Sprintf("bpftool prog show id %d   # find its owner; if it must stay, use --gather tc and UDP sockets", x.ID))
	}
}

// receiveQueues returns the number of receive queues in use, 1 if the driver does not report it.
func receiveQueues(n *facts.NIC) int {
	if n.Channels.Err != nil {
		return 1
	}
	return max(n.Channels.Value.RX+n.Channels.Value.Combined, 1)
}

func evaluateChannels(f *facts.Facts, n *facts.NIC, r *recorder) {
	have, c := receiveQueues(n), n.Channels.Value
	most := max(c.MaxRX+c.MaxCombined, have)
	cpus := len(f.CPU.Online.Value)
	word := "combined"
	if c.MaxCombined == 0 {
		word = "rx"
	}
	switch {
	case n.Virtual:
		r.ok(n.Name, "virtual device: packets are processed on the sender's CPU")
	case n.Channels.Err != nil && !errors.Is(n.Channels.Err, unix.EOPNOTSUPP):
		r.unknown(n.Name, n.Channels.Err)
	case f.CPU.Online.Err != nil:
		r.unknown(n.Name, f.CPU.Online.Err)
	case have >= cpus:
		r.ok(n.Name, "%d receive queues for %d CPUs", have, cpus)
	case have < most:
		r.warn(n.Name, fmt.Sprintf("%d of %d receive queues in use, for %d CPUs", have, most, cpus),
			fmt.Sprintf("ethtool -L %s %s %d   # the link goes down for a moment", quote(n.Name), word, min(most, cpus)))
	case have == 1:
		r.warn(n.Name, fmt.Sprintf("1 receive queue for %d CPUs", cpus),
			"in a virtual machine: configure one queue per CPU (virtio: queues=N); otherwise see nic-rps")
	default:
		r.ok(n.Name, "%d receive queues (the maximum) for %d CPUs", have, cpus)
	}
}

// minRing is the smallest ring that draws no warning, in packets. It holds eleven TSO trains of 64 KiB at an MTU of 1500.
const minRing = 512

func evaluateRings(_ *facts.Facts, n *facts.NIC, r *recorder) {
	ring := n.Rings.Value
	want := min(minRing, ring.MaxRX)
	switch {
	case n.Rings.Err != nil:
		driverError(n, r, n.Rings.Err)
	case ring.RX < want:
		r.warn(n.Name, fmt.Sprintf("receive ring of %d packets (maximum %d)", ring.RX, ring.MaxRX),
			fmt.Sprintf("ethtool -G %s rx %d   # the link goes down for a moment", quote(n.Name), want))
	default:
		r.ok(n.Name, "receive ring of %d packets, transmit ring of %d", ring.RX, ring.TX)
	}
}

// maxCoalescing is the largest acceptable delay for a tunnel within one site.
const maxCoalescing = 100 * time.Microsecond

func evaluateCoalescing(_ *facts.Facts, n *facts.NIC, r *recorder) {
	c := n.Coalescing.Value
	switch {
	case n.Coalescing.Err != nil:
		driverError(n, r, n.Coalescing.Err)
	case c.Adaptive:
		r.ok(n.Name, "adaptive")
	case c.RX > maxCoalescing:
		r.warn(n.Name, fmt.Sprintf("%v", c.RX), fmt.Sprintf("ethtool -C %s rx-usecs 50", quote(n.Name)))
	default:
		r.ok(n.Name, "%v", c.RX)
	}
}

func evaluateRSS(_ *facts.Facts, n *facts.NIC, r *recorder) {
	have, rss := receiveQueues(n), n.RSS.Value
	queues := len(rss.Queues())
	switch {
	case errors.Is(n.RSS.Err, hostnet.ErrNoRSS) && (have == 1 || n.Virtual):
		r.ok(n.Name, "no RSS: the device has one queue or is virtual")
	case errors.Is(n.RSS.Err, hostnet.ErrNoRSS):
		r.warn(n.Name, fmt.Sprintf("the driver does not report its RSS configuration (%d queues)", have),
			"none: peers spread towards this host without a port plan")
	case n.RSS.Err != nil:
		r.unknown(n.Name, n.RSS.Err)
	case queues < have:
		r.warn(n.Name, fmt.Sprintf("the RSS indirection table uses %d of %d queues", queues, have),
			fmt.Sprintf("ethtool -X %s equal %d", quote(n.Name), have))
	case hostnet.MisreportsHash(rss.Driver):
		r.ok(n.Name, "the %s driver reports another RSS hash than the NIC's: peers spread towards this host without a port plan", rss.Driver)
	case rss.Function != spread.Toeplitz:
		r.warn(n.Name, "the RSS hash function is not Toeplitz: peers spread towards this host without a port plan",
			fmt.Sprintf("ethtool -X %s hfunc toeplitz", quote(n.Name)))
	case rss.Transform == spread.OtherTransform:
		r.warn(n.Name, "the NIC transforms the hashed fields in an unknown way: peers spread towards this host without a port plan",
			fmt.Sprintf("ethtool -X %s xfrm none", quote(n.Name)))
	default:
		r.ok(n.Name, "Toeplitz, %d-byte key, %d indirection table entries for %d queues", len(rss.Key), len(rss.Indirection), queues)
	}
}

func evaluateUDPHash(_ *facts.Facts, n *facts.NIC, r *recorder) {
	switch {
	case errors.Is(n.RSS.Err, hostnet.ErrNoRSS):
		r.ok(n.Name, "the driver does not report RSS hash fields")
		return
	case n.RSS.Err != nil:
		r.unknown(n.Name, n.RSS.Err)
		return
	case receiveQueues(n) == 1:
		r.ok(n.Name, "one receive queue: the hash has no effect")
		return
	case n.RSS.Value.Driver == hostnet.NetvscDriver:
		r.warn(n.Name, "Hyper-V hashes received UDP by IP addresses only, whatever the driver reports: spread has no effect here",
			"enable accelerated networking (SR-IOV) for the virtual machine's interface; otherwise see nic-rps")
		return
	}
	var changes []Change
	for _, family := range []struct {
		key    string
		fields spread.Fields
	}{{"udp4", n.RSS.Value.UDP4}, {"udp6", n.RSS.Value.UDP6}} {
		switch family.fields {
		case spread.AddressesOnly:
			changes = append(changes, Change{Kind: FlowHash, Target: n.Name, Key: family.key, Before: addressesOnly, After: fourTuple})
		case spread.OtherFields:
			r.warn(n.Name, family.key+" is hashed by fields other than addresses and ports",
				fmt.Sprintf("ethtool -N %s rx-flow-hash %s sdfn", quote(n.Name), family.key))
		}
	}
	if len(changes) > 0 {
		r.fail(n.Name, "UDP is hashed by IP addresses only: spread has no effect", "", changes...)
	} else if n.RSS.Value.UDP4 == spread.FourTuple && n.RSS.Value.UDP6 == spread.FourTuple {
		r.ok(n.Name, "addresses and ports")
	}
}

// The kernel's names of features (net/ethtool/common.c, netdev_features_strings).
const (
	featureGRO        = "rx-gro"
	featureForwarding = "rx-udp-gro-forwarding"
	featureList       = "rx-gro-list"
)

func evaluateGRO(f *facts.Facts, n *facts.NIC, r *recorder) {
	if n.Features.Err != nil {
		driverError(n, r, n.Features.Err)
		return
	}
	forwards := f.Sysctls[facts.Forward4].Value != "0" || f.Sysctls[facts.Forward6].Value != "0"
	var changes []Change
	// Packets on a virtual device have passed GRO already, or were never segmented.
	for _, want := range []struct {
		name        string
		on, matters bool
	}{{featureGRO, true, !n.Virtual}, {featureForwarding, true, forwards}, {featureList, false, true}} {
		have, there := n.Features.Value[want.name]
		if there && want.matters && !have.Fixed && have.On != want.on {
			changes = append(changes, Change{Kind: Offload, Target: n.Name, Key: want.name, Before: onOff(have.On), After: onOff(want.on)})
		}
	}
	found := fmt.Sprintf("%s %s, %s %s, %s %s", featureGRO, onOff(n.Features.Value[featureGRO].On), featureForwarding,
		onOff(n.Features.Value[featureForwarding].On), featureList, onOff(n.Features.Value[featureList].On))
	switch {
	case len(changes) > 0:
		r.warn(n.Name, found, "", changes...)
	case !forwards:
		r.ok(n.Name, "%s; IP forwarding is off", found)
	default:
		r.ok(n.Name, "%s", found)
	}
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// minMTU is the smallest underlay MTU for IPv6 packets of 1280 bytes in data messages over IPv6, in bytes.
const minMTU = 1280 + overheadIPv6

func evaluateMTU(_ *facts.Facts, n *facts.NIC, r *recorder) {
	if n.MTU < minMTU {
		r.warn(n.Name, fmt.Sprintf("%d bytes", n.MTU), fmt.Sprintf("ip link set dev %s mtu 1500", quote(n.Name)))
		return
	}
	r.ok(n.Name, "%d bytes", n.MTU)
}

func evaluateNUMA(f *facts.Facts, n *facts.NIC, r *recorder) {
	nodes := f.CPU.Nodes
	switch {
	case nodes.Err != nil && !errors.Is(nodes.Err, os.ErrNotExist):
		r.unknown(n.Name, nodes.Err)
	case len(nodes.Value) < 2:
		r.ok(n.Name, "one NUMA node")
	case n.Node < 0:
		r.ok(n.Name, "no NUMA node")
	default:
		r.warn(n.Name, fmt.Sprintf("NUMA node %d of %d", n.Node, len(nodes.Value)),
			fmt.Sprintf("numactl --cpunodebind=%d --membind=%d ropewalk run INTERFACE, or NUMAMask=%d in the service", n.Node, n.Node, n.Node))
	}
}
