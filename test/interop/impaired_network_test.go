// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
	"github.com/ropewalk/ropewalk/test/expect"
)

// impairedNetwork is a bridge between two hosts. netem drops, delays and reorders the packets that leave it. It carries IPv4
// without ARP, so that every packet is a message of one of the tunnels.
type impairedNetwork struct {
	host  *host
	ports map[*host]*impairedPort // by the host that the port leads to
}

// impairedPort is a port of the bridge, with the messages that it received from its host and those that it sent to it after netem.
type impairedPort struct {
	device  string
	capture *netlab.Capture

	mu       sync.Mutex
	in, out  []wireMessage
	captured error
}

// wireMessage is a captured message: its length, and its data header if it is long enough.
type wireMessage struct {
	length int
	header dataHeader
}

// dataHeader is unique in a session and its direction, since it contains the counter.
type dataHeader [wire.DataHeaderLen]byte

func (m *wireMessage) isData() bool     { return m.header[0] == byte(wire.TypeData) }
func (m *wireMessage) counter() uint64  { return binary.LittleEndian.Uint64(m.header[8:]) }
func (m *wireMessage) receiver() uint32 { return binary.LittleEndian.Uint32(m.header[4:]) }

// newImpairedNetwork creates a bridge without ports.
func newImpairedNetwork(t *testing.T) (*impairedNetwork, *netlab.Host) {
	t.Helper()
	lab, err := netlab.New("interop")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	h, err := lab.Host("network")
	expect.NoError(t, err)
	n := &impairedNetwork{host: openHost(t, h), ports: map[*host]*impairedPort{}}
	expect.NoError(t, n.host.disableIPv6("default"))
	attrs, snooping := netlink.NewLinkAttrs(), false
	attrs.Name = bridge
	expect.NoError(t, n.host.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}))
	expect.NoError(t, n.host.setUp(bridge))
	return n, h
}

// bridge is the name of the impaired network's bridge.
const bridge = "bridge"

// openHost returns a host for the namespace of a netlab host.
func openHost(t *testing.T, h *netlab.Host) *host {
	t.Helper()
	ns, err := netns.GetFromPath(h.Path())
	expect.NoError(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	nl, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	expect.NoError(t, err)
	t.Cleanup(nl.Close)
	return &host{name: h.Name(), ns: ns, nl: nl}
}

// plug connects a host with the network. The host sends no trains, as if its NIC had no segmentation offload: netem would drop
// or delay a train as a whole.
func (n *impairedNetwork) plug(t *testing.T, h *host, network *netlab.Host) {
	t.Helper()
	p := &impairedPort{device: h.name}
	n.ports[h] = p
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.GSOMaxSegs = cable, 1
	expect.NoError(t, h.nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: p.device, PeerNamespace: netlink.NsFd(int(n.host.ns))}))
	expect.NoError(t, h.disableIPv6(cable))
	expect.NoError(t, n.host.addToBridge(p.device))
	h.pollInOrder(t, cable)
	expect.NoError(t, h.waitForTrains(cable))
	n.host.pollInOrder(t, p.device)
	expect.NoError(t, h.setUp(cable))
	expect.NoError(t, n.host.setUp(p.device))
	var err error
	p.capture, err = network.Capture(netlab.CaptureConfig{
		Device: p.device, Handle: p.take, SnapLen: headers + wire.DataHeaderLen, // the ring has room for more packets
	})
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, p.capture.Close()) })
}

// disableIPv6 stops the neighbour discovery of a device; "default" means all future devices.
func (h *host) disableIPv6(device string) error {
	return h.do(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/"+device+"/disable_ipv6", []byte("1"), 0) })
}

func (h *host) addToBridge(device string) error {
	l, err := h.nl.LinkByName(device)
	if err != nil {
		return err
	}
	master, err := h.nl.LinkByName(bridge)
	if err != nil {
		return err
	}
	return h.nl.LinkSetMaster(l, master)
}

// pollInOrder makes a veth device receive by NAPI, as a NIC does, which an XDP program on it causes. Otherwise its packets pass
// the backlogs of all processors, which may reorder the packets of a thread that migrates.
func (h *host) pollInOrder(t *testing.T, device string) {
	t.Helper()
	const xdpPass = 2 // linux/bpf.h
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	expect.NoError(t, err)
	defer pass.Close()
	l, err := h.nl.LinkByName(device)
	expect.NoError(t, err)
	expect.NoError(t, h.do(func() error { return netlink.LinkSetXdpFdWithFlags(l, pass.FD(), unix.XDP_FLAGS_DRV_MODE) }))
}

// waitForTrains makes GRO on a device wait for 2 ms, so that the host receives trains although the network delays each packet.
func (h *host) waitForTrains(device string) error {
	return h.doWithSysfs(func() error {
		file := filepath.Join("/sys/class/net", device, "gro_flush_timeout")
		return errors.Join(hostnet.SetFeature(device, "rx-gro", true), os.WriteFile(file, []byte("2000000"), 0))
	})
}

// doWithSysfs is do with a sysfs that shows the devices of the host.
func (h *host) doWithSysfs(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread, and its mounts with it
		err := errors.Join(netns.Set(h.ns), unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS))
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("sysfs", "/sys", "sysfs", 0, "")
		}
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// awaitUp waits until the bridge forwards between its ports.
func (n *impairedNetwork) awaitUp(t *testing.T) {
	t.Helper()
	devices := []string{bridge}
	for _, p := range n.ports {
		devices = append(devices, p.device)
	}
	expect.EventuallyNoError(t, "the bridge to come up", func() error {
		for _, device := range devices {
			l, err := n.host.nl.LinkByName(device)
			if err != nil {
				return err
			}
			if l.Attrs().OperState != netlink.OperUp {
				return fmt.Errorf("%s is %s", device, l.Attrs().OperState)
			}
		}
		return nil
	})
}

// impair sets the loss, and the delay that a packet has at each port. Jitter reorders packets.
func (n *impairedNetwork) impair(t *testing.T, a netlink.NetemQdiscAttrs) {
	t.Helper()
	a.Limit = 10000 // packets in the queue: netem itself drops what exceeds it
	for _, p := range n.ports {
		l, err := n.host.nl.LinkByName(p.device)
		expect.NoError(t, err)
		at := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
		err = n.host.nl.QdiscReplace(netlink.NewNetem(at, a))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
			t.Skip("this kernel has no netem (make test-kernels runs kernels that have it)")
		}
		expect.NoError(t, err)
	}
}

// drops returns the number of packets to h that netem dropped.
func (n *impairedNetwork) drops(h *host) (int, error) {
	l, err := n.host.nl.LinkByName(n.ports[h].device)
	if err != nil {
		return 0, err
	}
	list, err := n.host.nl.QdiscList(l)
	if err != nil {
		return 0, err
	}
	for _, q := range list {
		if s := q.Attrs().Statistics; q.Type() == "netem" && s != nil && s.Queue != nil {
			return int(s.Queue.Drops), nil
		}
	}
	return 0, fmt.Errorf("%s has no netem qdisc with statistics", n.ports[h].device)
}

// take records a captured frame.
func (p *impairedPort) take(f netlab.Packet) {
	m, err := parseWireMessage(f)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.captured = errors.Join(p.captured, err)
	case f.Outgoing:
		p.out = append(p.out, m)
	default:
		p.in = append(p.in, m)
	}
}

const headers = 14 + 20 + 8 // Ethernet, IPv4 without options, UDP

func parseWireMessage(f netlab.Packet) (m wireMessage, err error) {
	if len(f.Data) < headers || binary.BigEndian.Uint16(f.Data[12:]) != unix.ETH_P_IP || f.Data[23] != unix.IPPROTO_UDP {
		return m, fmt.Errorf("captured a frame that is not UDP over IPv4: %x", f.Data[:min(len(f.Data), headers)])
	}
	m.length = int(binary.BigEndian.Uint16(f.Data[38:])) - 8
	if m.length+headers != f.Len {
		return m, fmt.Errorf("captured a frame of %d bytes with a datagram of %d bytes", f.Len, m.length)
	}
	copy(m.header[:], f.Data[headers:])
	return m, nil
}

// messages returns the messages captured so far.
func (p *impairedPort) messages() (in, out []wireMessage, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if missed := p.capture.Stats().Missed; missed > 0 {
		return nil, nil, fmt.Errorf("the capture missed %d packets", missed)
	}
	return p.in, p.out, p.captured
}

// passed returns the messages that `from` sent, and those that netem passed on to `to`. The error says that some are still on
// their way: each message that was sent either arrived or was dropped by netem.
func (n *impairedNetwork) passed(from, to *host) (sent, arrived []wireMessage, err error) {
	sent, _, err = n.ports[from].messages()
	if err != nil {
		return nil, nil, err
	}
	_, arrived, err = n.ports[to].messages()
	if err != nil {
		return nil, nil, err
	}
	drops, err := n.drops(to)
	if err == nil && len(sent) != len(arrived)+drops {
		err = fmt.Errorf("%s sent %d messages, %d arrived and netem dropped %d", from.name, len(sent), len(arrived), drops)
	}
	return sent, arrived, err
}

// setNeighbor sets the link-layer address of y's cable on x, which then sends no ARP requests.
func (x *tunnel) setNeighbor(y *tunnel, addr net.IP) error {
	own, err := x.host.nl.LinkByName(cable)
	if err != nil {
		return err
	}
	other, err := y.host.nl.LinkByName(cable)
	if err != nil {
		return err
	}
	return x.host.nl.NeighSet(&netlink.Neigh{
		LinkIndex: own.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr, HardwareAddr: other.Attrs().HardwareAddr,
	})
}
