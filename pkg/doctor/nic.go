// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/hostnet"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

func nicChecks() []Check {
	return []Check{
		check("nic-driver", "the driver, and whether it runs XDP natively and AF_XDP without copies", judgeDrivers,
			"AF_XDP pays where the driver has both; elsewhere UDP sockets are as fast"),
		checkNICs("nic-xdp", "the XDP program on the device", judgeXDP,
			"a device has room for one XDP program: with another's there, ropewalk's cannot be attached"),
		checkNICs("nic-channels", "queues in use, against processors", judgeChannels,
			"each queue brings one more core to work on what arrives"),
		checkNICs("nic-rings", "how many packets a queue holds", judgeRings,
			"trains arrive faster than a core takes them off: a short queue loses their ends"),
		checkNICs("nic-coalescing", "how long the NIC waits before it interrupts", judgeCoalescing,
			"every round trip through the tunnel waits that long, too"),
		checkNICs("nic-rss", "hash function, key and indirection table", judgeRSS,
			"source ports that land evenly on the queues are planned from them"),
		checkNICs("nic-udp-hash", "whether the NIC hashes UDP ports", judgeUDPHash,
			"spread gives each flow a source port of its own; a NIC that does not hash ports puts all on one queue").fixable(),
		checkNICs("nic-gro", "GRO, rx-udp-gro-forwarding and rx-gro-list", judgeGRO,
			"GRO makes trains of what arrives; of UDP that is forwarded only with rx-udp-gro-forwarding, which rx-gro-list overrides").fixable(),
		checkNICs("nic-mtu", "the device's MTU", judgeMTU,
			"below 1360 bytes no IPv6 packet of 1280 fits into the tunnel"),
		checkNICs("nic-numa", "the NUMA node of the NIC", judgeNUMA,
			"lanes on another node fetch every packet across the interconnect"),
	}
}

// eachNIC runs a judge for all underlay devices.
func eachNIC(judge func(*facts.Facts, *facts.NIC, *recorder)) func(*facts.Facts, *recorder) {
	return func(f *facts.Facts, r *recorder) {
		for i := range f.NICs {
			judge(f, &f.NICs[i], r)
		}
	}
}

// unanswered records what a driver does not tell: nothing to judge where it has no such thing.
func unanswered(n *facts.NIC, r *recorder, err error) {
	if errors.Is(err, unix.EOPNOTSUPP) {
		r.ok(n.Name, "its driver has none to set")
		return
	}
	r.unknown(n.Name, err)
}

func judgeDrivers(f *facts.Facts, r *recorder) {
	if len(f.NICs) == 0 {
		r.ok("", "there is no default route, and none to a peer: name a device with --device")
	}
	eachNIC(judgeDriver)(f, r)
}

func judgeDriver(_ *facts.Facts, n *facts.NIC, r *recorder) {
	name := n.Driver.Value
	if n.Driver.Err != nil || name == "" {
		name = "no driver that tells its name"
	}
	if n.Speed > 0 && !n.Virtual { // of which the figure means nothing
		name += fmt.Sprintf(", %g Gbit/s", float64(n.Speed)/1000)
	}
	can := n.XDPDriver
	switch {
	case can.Err != nil && !errors.Is(can.Err, errors.ErrUnsupported):
		r.unknown(n.Name, can.Err)
	case can.Err != nil:
		r.ok(n.Name, "%s (%s); what it can do is told from Linux 6.3", name, n.Why)
	case can.Value.ZeroCopy:
		r.ok(n.Name, "%s (%s): native XDP, AF_XDP without copies", name, n.Why)
	case can.Value.Native:
		r.ok(n.Name, "%s (%s): native XDP, AF_XDP copies", name, n.Why)
	case n.Virtual:
		r.ok(n.Name, "%s (%s): a virtual device without native XDP", name, n.Why)
	default:
		r.warn(n.Name, fmt.Sprintf("%s (%s): no native XDP", name, n.Why), "leave AF_XDP off here: UDP sockets serve this NIC best")
	}
}

func judgeXDP(_ *facts.Facts, n *facts.NIC, r *recorder) {
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
		r.ok(n.Name, "ropewalk's %s (%s mode)", x.Name, mode)
	default:
		r.warn(n.Name, fmt.Sprintf("program %d %q of another (%s mode)", x.ID, x.Name, mode),
			fmt.Sprintf("bpftool prog show id %d   # whose it is: where it must stay, use --gather tc and UDP sockets", x.ID))
	}
}

// receiveQueues are those in use; 1 where the driver does not tell.
func receiveQueues(n *facts.NIC) int {
	if n.Channels.Err != nil {
		return 1
	}
	return max(n.Channels.Value.RX+n.Channels.Value.Combined, 1)
}

func judgeChannels(f *facts.Facts, n *facts.NIC, r *recorder) {
	have, c := receiveQueues(n), n.Channels.Value
	most := max(c.MaxRX+c.MaxCombined, have)
	cpus := len(f.CPU.Online.Value)
	word := "combined"
	if c.MaxCombined == 0 {
		word = "rx"
	}
	switch {
	case n.Virtual:
		r.ok(n.Name, "a virtual device: what it carries is processed where it is sent")
	case n.Channels.Err != nil && !errors.Is(n.Channels.Err, unix.EOPNOTSUPP):
		r.unknown(n.Name, n.Channels.Err)
	case f.CPU.Online.Err != nil:
		r.unknown(n.Name, f.CPU.Online.Err)
	case have >= cpus:
		r.ok(n.Name, "%d receive queues for %d processors", have, cpus)
	case have < most:
		r.warn(n.Name, fmt.Sprintf("%d receive queues of %d, for %d processors", have, most, cpus),
			fmt.Sprintf("ethtool -L %s %s %d   # the link goes down for a moment", quote(n.Name), word, min(most, cpus)))
	case have == 1:
		r.warn(n.Name, fmt.Sprintf("one receive queue, for %d processors", cpus),
			"in a virtual machine: give the NIC one queue per processor (virtio: queues=N); else see nic-rps")
	default:
		r.ok(n.Name, "%d receive queues, all that it has, for %d processors", have, cpus)
	}
}

// ringWanted is what holds four whole TSO trains, in packets.
const ringWanted = 512

func judgeRings(_ *facts.Facts, n *facts.NIC, r *recorder) {
	ring := n.Rings.Value
	want := min(ringWanted, ring.MaxRX)
	switch {
	case n.Rings.Err != nil:
		unanswered(n, r, n.Rings.Err)
	case ring.RX < want:
		r.warn(n.Name, fmt.Sprintf("receive queues of %d packets, of %d that it can have", ring.RX, ring.MaxRX),
			fmt.Sprintf("ethtool -G %s rx %d   # the link goes down for a moment", quote(n.Name), want))
	default:
		r.ok(n.Name, "receive queues of %d packets, transmit queues of %d", ring.RX, ring.TX)
	}
}

// mostCoalescing is more than the round trip of a tunnel in one building should wait.
const mostCoalescing = 100 * time.Microsecond

func judgeCoalescing(_ *facts.Facts, n *facts.NIC, r *recorder) {
	c := n.Coalescing.Value
	switch {
	case n.Coalescing.Err != nil:
		unanswered(n, r, n.Coalescing.Err)
	case c.Adaptive:
		r.ok(n.Name, "adaptive")
	case c.RX > mostCoalescing:
		r.warn(n.Name, fmt.Sprintf("%v", c.RX), fmt.Sprintf("ethtool -C %s rx-usecs 50", quote(n.Name)))
	default:
		r.ok(n.Name, "%v", c.RX)
	}
}

func judgeRSS(_ *facts.Facts, n *facts.NIC, r *recorder) {
	have, rss := receiveQueues(n), n.RSS.Value
	queues := len(rss.Queues())
	switch {
	case errors.Is(n.RSS.Err, hostnet.ErrNoRSS) && (have == 1 || n.Virtual):
		r.ok(n.Name, "none: the device does not choose among queues")
	case errors.Is(n.RSS.Err, hostnet.ErrNoRSS):
		r.warn(n.Name, fmt.Sprintf("the driver does not tell how it chooses among %d queues", have),
			"nothing: source ports spread, and are not planned")
	case n.RSS.Err != nil:
		r.unknown(n.Name, n.RSS.Err)
	case queues < have:
		r.warn(n.Name, fmt.Sprintf("the indirection table leads to %d of %d queues", queues, have),
			fmt.Sprintf("ethtool -X %s equal %d", quote(n.Name), have))
	case rss.Function != spread.Toeplitz || rss.Transform == spread.OtherTransform:
		r.warn(n.Name, "the NIC's hash is not Toeplitz: ports spread, and cannot be planned",
			fmt.Sprintf("ethtool -X %s hfunc toeplitz", quote(n.Name)))
	default:
		r.ok(n.Name, "Toeplitz, a key of %d bytes, %d table entries for %d queues", len(rss.Key), len(rss.Indirection), queues)
	}
}

func judgeUDPHash(_ *facts.Facts, n *facts.NIC, r *recorder) {
	switch {
	case errors.Is(n.RSS.Err, hostnet.ErrNoRSS):
		r.ok(n.Name, "the device does not choose among queues by a hash that it tells")
		return
	case n.RSS.Err != nil:
		r.unknown(n.Name, n.RSS.Err)
		return
	case receiveQueues(n) == 1:
		r.ok(n.Name, "there is one queue to choose from")
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
			r.warn(n.Name, family.key+" is hashed by other fields than addresses and ports",
				fmt.Sprintf("ethtool -N %s rx-flow-hash %s sdfn", quote(n.Name), family.key))
		}
	}
	if len(changes) > 0 {
		r.fail(n.Name, "UDP is hashed by its addresses alone: spread does nothing", "", changes...)
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

func judgeGRO(f *facts.Facts, n *facts.NIC, r *recorder) {
	if n.Features.Err != nil {
		unanswered(n, r, n.Features.Err)
		return
	}
	forwards := f.Sysctls[facts.Forward4].Value != "0" || f.Sysctls[facts.Forward6].Value != "0"
	var changes []Change
	// What a virtual device carries has been through GRO already, or was never cut into packets.
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
		r.ok(n.Name, "%s; this host forwards nothing", found)
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

// leastMTU holds an IPv6 packet of 1280 bytes in the tunnel's data message over IPv6, in bytes.
const leastMTU = 1280 + overheadIPv6

func judgeMTU(_ *facts.Facts, n *facts.NIC, r *recorder) {
	if n.MTU < leastMTU {
		r.warn(n.Name, fmt.Sprintf("%d bytes", n.MTU), fmt.Sprintf("ip link set dev %s mtu 1500", quote(n.Name)))
		return
	}
	r.ok(n.Name, "%d bytes", n.MTU)
}

func judgeNUMA(f *facts.Facts, n *facts.NIC, r *recorder) {
	nodes := f.CPU.Nodes
	switch {
	case nodes.Err != nil && !errors.Is(nodes.Err, os.ErrNotExist):
		r.unknown(n.Name, nodes.Err)
	case len(nodes.Value) < 2:
		r.ok(n.Name, "this machine has one node")
	case n.Node < 0:
		r.ok(n.Name, "belongs to no node")
	default:
		r.warn(n.Name, fmt.Sprintf("on node %d of %d", n.Node, len(nodes.Value)),
			fmt.Sprintf("numactl --cpunodebind=%d --membind=%d ropewalk run INTERFACE, or NUMAMask=%d in the service", n.Node, n.Node, n.Node))
	}
}
