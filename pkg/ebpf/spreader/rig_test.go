// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	port  = 51820
	flows = 16
	// fewestPorts is the number of ports that flows use at least. Once in 500 runs two of them have the same entry in the flow table.
	fewestPorts = flows - 1
)

var (
	hereAddr  = netip.MustParseAddr("192.0.2.1")
	thereAddr = netip.MustParseAddr("192.0.2.2")
)

// rig is two hosts with a cable between them, and a BPF file system.
type rig struct {
	*testing.T
	lab         *netlab.Lab
	here, there *side
	fs          string
}

// side is one host with its end of the cable.
type side struct {
	r      *rig
	lab    *netlab.Host
	device string
	addr   netip.Addr
	finder *fakeFinder
	host   *Host
}

// fakeFinder is a Finder with a fixed list of tunnels.
type fakeFinder struct {
	mu      sync.Mutex
	tunnels []Tunnel
	err     error
}

func (f *fakeFinder) Tunnels() ([]Tunnel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]Tunnel(nil), f.tunnels...), f.err
}

func (f *fakeFinder) RestartPeer(string, string) (func() error, error) {
	return nil, errors.ErrUnsupported
}

// set copies the tunnels, so that callers may change theirs while a watch reads.
func (f *fakeFinder) set(tunnels ...Tunnel) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tunnels = slices.Clone(tunnels)
	for i := range f.tunnels {
		f.tunnels[i].Peers = slices.Clone(f.tunnels[i].Peers)
	}
}

// wg returns a kernel tunnel on the tests' port with peers at these endpoints; "" means no endpoint.
func wg(endpoints ...string) Tunnel {
	t := Tunnel{Name: "wg0", Port: port}
	for i, e := range endpoints {
		p := TunnelPeer{Key: string(rune('a' + i))}
		if e != "" {
			p.Endpoint = netip.MustParseAddrPort(e)
			p.Secrets = secretsWith(p.Endpoint.Addr())
		}
		t.Peers = append(t.Peers, p)
	}
	return t
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := newUnpluggedRig(t)
	r.here.finder.set(wg(netip.AddrPortFrom(thereAddr, port).String()))
	r.there.finder.set(wg(netip.AddrPortFrom(hereAddr, port).String()))
	r.plug()
	return r
}

// newUnpluggedRig returns a rig without a cable.
func newUnpluggedRig(t *testing.T) *rig {
	t.Helper()
	lab, err := netlab.New("spreader")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	r := &rig{T: t, lab: lab}
	expect.NoError(r, err)
	t.Cleanup(func() { expect.NoError(r, lab.Close()) })
	r.fs = mountBPFFS(t)
	r.here, r.there = r.side("here", hereAddr), r.side("there", thereAddr)
	return r
}

func (r *rig) side(name string, addr netip.Addr) *side {
	r.Helper()
	h, err := r.lab.Host(name)
	expect.NoError(r, err)
	f := &fakeFinder{}
	return &side{r: r, lab: h, addr: addr, finder: f, host: &Host{FS: r.fs, Tunnels: f, pollInterval: time.Hour}}
}

// plug connects the hosts with a cable.
func (r *rig) plug() {
	r.Helper()
	c, err := r.lab.Cable(r.here.lab, r.there.lab, netlab.CableConfig{
		Queues: 4,
		AddrsA: []netip.Prefix{netip.PrefixFrom(hereAddr, 24)}, AddrsB: []netip.Prefix{netip.PrefixFrom(thereAddr, 24)},
	})
	expect.NoError(r, err)
	r.here.rename(c.DeviceA)
	r.there.rename(c.DeviceB)
}

// rename gives the device a fixed name, which is not a valid file name in a BPF file system.
func (s *side) rename(from string) {
	s.r.Helper()
	s.device = "cable.7"
	s.do(func() error {
		l, err := netlink.LinkByName(from)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetDown(l), netlink.LinkSetName(l, s.device), netlink.LinkSetUp(l))
	})
}

// unplug deletes the cable, both ends.
func (r *rig) unplug() {
	r.Helper()
	r.here.do(func() error {
		l, err := netlink.LinkByName(r.here.device)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
}

func (s *side) do(f func() error) {
	s.r.Helper()
	expect.NoError(s.r, s.lab.Do(f))
}

func (s *side) config() Config { return Config{Device: s.device, Port: port} }

// try attaches, and skips the test if the kernel does not support it.
func (s *side) try(cfg Config) (report Report, err error) {
	s.r.Helper()
	doErr := s.lab.Do(func() error {
		report, err = s.host.Attach(s.r.Context(), cfg)
		return nil
	})
	expect.NoError(s.r, doErr)
	if errors.Is(err, ebpf.ErrNotSupported) && s.host.kind != hook.Best {
		s.r.Skip(err)
	}
	return report, err
}

func (s *side) attach(cfg Config) Report {
	s.r.Helper()
	report, err := s.try(cfg)
	expect.NoError(s.r, err)
	return report
}

func (s *side) detach(port uint16) {
	s.r.Helper()
	s.do(func() error { return s.host.Detach(s.r.Context(), port) })
}

// status returns the device's status, or nil if nothing is attached.
func (s *side) status() *DeviceStatus {
	s.r.Helper()
	var all []DeviceStatus
	s.do(func() (err error) {
		all, err = s.host.Status(s.r.Context(), s.device)
		return err
	})
	if len(all) == 0 {
		return nil
	}
	return &all[0]
}

// pins returns all paths in the BPF file system.
func (r *rig) pins() (paths []string) {
	r.Helper()
	expect.NoError(r, filepath.WalkDir(r.fs, func(path string, d fs.DirEntry, err error) error {
		if !strings.Contains(d.Name(), ".") && path != r.fs { // files of the kernel have a dot
			paths = append(paths, strings.TrimPrefix(path, r.fs))
		}
		return err
	}))
	return paths
}

// clean fails if pins or a clsact qdisc are left.
func (s *side) clean() {
	s.r.Helper()
	if pins := s.r.pins(); len(pins) > 0 {
		s.r.Errorf("pins left: %q", pins)
	}
	s.do(func() error {
		l, err := netlink.LinkByName(s.device)
		if err != nil {
			return nil //nolint:nilerr // gone, and its qdiscs with it
		}
		qdiscs, err := netlink.QdiscList(l)
		for _, q := range qdiscs {
			if q.Type() == "clsact" {
				s.r.Error("a clsact qdisc was not removed")
			}
		}
		return err
	})
}

// socket opens a socket on a port, which several may share.
func (s *side) socket(port uint16) *net.UDPConn {
	s.r.Helper()
	var c *net.UDPConn
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		ctlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		})
		return errors.Join(err, ctlErr)
	}}
	s.do(func() error {
		p, err := config.ListenPacket(s.r.Context(), "udp4", netip.AddrPortFrom(s.addr, port).String())
		if err == nil {
			c = p.(*net.UDPConn)
		}
		return err
	})
	s.r.Cleanup(func() { c.Close() })
	return c
}

// message returns a numbered WireGuard data message (paper, section 5.4.6).
func message(flow, n int) []byte {
	m := make([]byte, 96)
	m[0] = 4
	binary.LittleEndian.PutUint32(m[16:], uint32(flow))
	binary.LittleEndian.PutUint32(m[20:], uint32(n))
	return m
}

// arrival is a received message.
type arrival struct {
	from    netip.AddrPort
	flow, n int
}

func (r *rig) receive(c *net.UDPConn) arrival {
	r.Helper()
	expect.NoError(r, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	b := make([]byte, 2048)
	n, from, err := c.ReadFromUDPAddrPort(b)
	for err == nil && r.answer(c, b[:n], from) {
		n, from, err = c.ReadFromUDPAddrPort(b)
	}
	expect.NoError(r, err)
	if n != 96 {
		r.Fatalf("received %d bytes, want a data message", n)
	}
	return arrival{from, int(binary.LittleEndian.Uint32(b[16:])), int(binary.LittleEndian.Uint32(b[20:]))}
}

// sources sends some messages of each flow from here to there, and returns their source ports by flow.
func (r *rig) sources(senders []*net.UDPConn, receiver *net.UDPConn) map[int]map[uint16]bool {
	r.Helper()
	to := netip.AddrPortFrom(thereAddr, port)
	from := map[int]map[uint16]bool{}
	for n := range 3 {
		for flow, c := range senders {
			_, err := c.WriteToUDPAddrPort(message(flow, n), to)
			expect.NoError(r, err)
		}
		for range senders {
			a := r.receive(receiver)
			if from[a.flow] == nil {
				from[a.flow] = map[uint16]bool{}
			}
			from[a.flow][a.from.Port()] = true
		}
	}
	return from
}

// senders returns sockets of here's tunnel, one per flow. They stand in for the kernel's WireGuard, which not every machine has: its
// packets carry the hash of the inner packet, and those of a socket the one that connect(2) gives it (sk_set_txhash).
func (r *rig) senders() (all []*net.UDPConn) {
	r.Helper()
	for range flows {
		c := r.here.socket(port)
		raw, err := c.SyscallConn()
		expect.NoError(r, err)
		ctlErr := raw.Control(func(fd uintptr) {
			err = unix.Connect(int(fd), &unix.SockaddrInet4{Addr: thereAddr.As4(), Port: port})
		})
		expect.NoError(r, errors.Join(err, ctlErr))
		all = append(all, c)
	}
	return all
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

func closeAll(senders []*net.UDPConn, receiver *net.UDPConn) {
	for _, c := range append(senders, receiver) {
		c.Close()
	}
}
