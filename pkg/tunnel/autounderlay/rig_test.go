// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// deadline bounds every wait.
const deadline = 20 * time.Second

// testNet is a host with a cable to another one. The peer there is only a socket.
type testNet struct {
	*testing.T
	lab   *netlab.Lab
	here  *netlab.Host
	far   *netlab.Host
	dev   string // device of here
	dir   string // of measurements
	peer  *net.UDPConn
	port  *Port
	peers *knownPeers // of port
	got   chan uint32 // numbers of the data messages that arrived at port
}

var (
	hereAt = netip.MustParsePrefix("192.0.2.1/24")
	farAt  = netip.MustParsePrefix("192.0.2.2/24")
	index  = uint32(0x1badcafe)

	hereEndpoint = config.Endpoint{AddrPort: netip.AddrPortFrom(hereAt.Addr(), 51820)}
	farEndpoint  = config.Endpoint{AddrPort: netip.AddrPortFrom(farAt.Addr(), 51820)}
)

func endpointAt(n byte) config.Endpoint {
	return config.Endpoint{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 51820)}
}

func newTestNet(t *testing.T) *testNet {
	t.Helper()
	s := newLab(t)
	s.dev = s.cable(hereAt, farAt)
	expect.NoError(t, s.far.Do(func() (err error) {
		s.peer, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(farEndpoint.AddrPort))
		return err
	}))
	t.Cleanup(func() { s.peer.Close() })
	return s
}

// newXDPTestNet returns a testNet whose port uses AF_XDP.
func newXDPTestNet(t *testing.T) *testNet {
	t.Helper()
	requireXDP(t)
	s := newTestNet(t)
	s.open(byXDP, "", slog.DiscardHandler)
	s.port.SetPeers(s.peers)
	s.awaitPath(byXDP)
	return s
}

func newLab(t *testing.T) *testNet {
	t.Helper()
	lab, hosts := netlabtest.Hosts(t, "auto", "here", "far")
	return &testNet{T: t, lab: lab, here: hosts[0], far: hosts[1], dir: t.TempDir()}
}

// cable connects the hosts, and returns the device at here.
func (s *testNet) cable(here, far netip.Prefix) string {
	s.Helper()
	c, err := s.lab.Cable(s.here, s.far, netlab.CableConfig{
		Queues: 1, MTU: 1500, AddrsA: []netip.Prefix{here}, AddrsB: []netip.Prefix{far},
	})
	expect.NoError(s, err)
	return c.DeviceA
}

// requireXDP skips tests that need the program and AF_XDP sockets.
func requireXDP(t *testing.T) {
	t.Helper()
	netlabtest.NeedAFXDP(t)
	c, err := programs.LoadClassify(programs.ClassifyOptions{ListenPort: 1})
	if errors.Is(err, os.ErrPermission) {
		t.Skipf("needs CAP_BPF: %v", err)
	}
	expect.NoError(t, err)
	expect.NoError(t, c.Close())
}

// openUDP opens the UDP port.
func (s *testNet) openUDP() *udp.Port {
	s.Helper()
	var u *udp.Port
	expect.NoError(s, s.here.Do(func() (err error) {
		u, err = udp.Open(udp.Config{Lanes: 1})
		return err
	}))
	return u
}

// knownPeers implements underlay.Peers as a device does.
type knownPeers struct {
	mu      sync.Mutex
	indices map[uint32]bool
	sources map[config.Endpoint]int
	guard   underlay.Guard
}

func newPeers(endpoints ...config.Endpoint) *knownPeers {
	k := &knownPeers{indices: map[uint32]bool{}, sources: map[config.Endpoint]int{}}
	for _, e := range endpoints {
		k.AddSource(e)
	}
	return k
}

func (k *knownPeers) Guard(g underlay.Guard) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.guard = g; g == nil {
		return
	}
	for i := range k.indices {
		g.AddIndex(i)
	}
	for e, n := range k.sources {
		for range n {
			g.AddSource(e)
		}
	}
}

func (k *knownPeers) Endpoints(limit int) (list []config.Endpoint) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for e := range k.sources {
		list = append(list, e)
	}
	return list[:min(limit, len(list))]
}

// change changes what the peers are, and reports it to the guard.
func (k *knownPeers) change(do func(), publish func(underlay.Guard)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	do()
	if k.guard != nil {
		publish(k.guard)
	}
}

func (k *knownPeers) AddIndex(i uint32) {
	k.change(func() { k.indices[i] = true }, func(g underlay.Guard) { g.AddIndex(i) })
}

func (k *knownPeers) RemoveIndex(i uint32) {
	k.change(func() { delete(k.indices, i) }, func(g underlay.Guard) { g.RemoveIndex(i) })
}

func (k *knownPeers) AddSource(e config.Endpoint) {
	k.change(func() { k.sources[e]++ }, func(g underlay.Guard) { g.AddSource(e) })
}

func (k *knownPeers) RemoveSource(e config.Endpoint) {
	k.change(func() {
		if k.sources[e]--; k.sources[e] <= 0 {
			delete(k.sources, e)
		}
	}, func(g underlay.Guard) { g.RemoveSource(e) })
}

// open opens the port, which knows no peers yet, and makes peers with one receiver index and one address.
func (s *testNet) open(mode config.UnderlayMode, device string, log slog.Handler) {
	s.Helper()
	s.port = s.another(mode, device, log)
	s.peers = newPeers(farEndpoint)
	s.peers.AddIndex(index)
	s.got = s.listen(s.port)
}

func (s *testNet) another(mode config.UnderlayMode, device string, log slog.Handler) (p *Port) {
	s.Helper()
	u := s.openUDP()
	expect.NoError(s, s.here.Do(func() (err error) {
		p, err = Open(Config{UDP: u, Mode: mode, Device: device, Measurements: s.dir, Log: slog.New(log)})
		return err
	}))
	s.Cleanup(func() { expect.NoError(s, p.Close()) })
	return p
}

// listen receives on the first lane until the port is closed.
func (s *testNet) listen(p *Port) chan uint32 {
	got := make(chan uint32, 1<<16)
	go func() {
		defer close(got)
		rx := make([]underlay.Datagrams, 8)
		for i := range rx {
			rx[i].Buf = make([]byte, 65535)
		}
		for {
			n, err := p.Lane(0).Recv(rx)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			for _, d := range rx[:n] {
				for b := d.Buf[:d.N]; len(b) > 0; b = b[min(d.SegSize, len(b)):] {
					if len(b) >= 12 {
						got <- binary.LittleEndian.Uint32(b[8:])
					}
				}
			}
		}
	}()
	return got
}

// message is a data message with a number.
func message(index, number uint32) []byte {
	b := make([]byte, 200)
	b[0] = 4
	binary.LittleEndian.PutUint32(b[4:], index)
	binary.LittleEndian.PutUint32(b[8:], number)
	// The complement keeps the checksums of all messages equal. Otherwise one of 65,536 numbers would give a checksum
	// that looks partial.
	binary.LittleEndian.PutUint32(b[12:], ^number)
	return b
}

// awaitMessage makes the peer send messages until one arrives.
func (s *testNet) awaitMessage(what string) {
	s.Helper()
	to := netip.AddrPortFrom(hereAt.Addr(), s.port.LocalPort())
	for len(s.got) > 0 {
		<-s.got
	}
	s.await(what, func() bool {
		_, err := s.peer.WriteToUDPAddrPort(message(index, 1), to)
		expect.NoError(s, err)
		select {
		case <-s.got:
			return true
		case <-time.After(20 * time.Millisecond):
			return false
		}
	})
}

func (s *testNet) endpoint() *underlay.Endpoint {
	return &underlay.Endpoint{Dst: farEndpoint.AddrPort}
}

// send sends a message through the first lane.
func (s *testNet) send(number uint32) {
	s.Helper()
	m := message(7, number)
	runs := []underlay.Run{{To: s.endpoint(), Parts: [][]byte{m}, SegSize: len(m), Segments: 1}}
	if s.port.Lane(0).Send(runs) != 0 && !errors.Is(runs[0].Err, unix.ENETUNREACH) {
		s.Log(runs[0].Err)
	}
}

func (s *testNet) await(what string, done func() bool) {
	s.Helper()
	expect.EventuallyNoError(s, what, func() error {
		if !done() {
			return fmt.Errorf("%+v", s.port.Report())
		}
		return nil
	})
}

// awaitPath waits until data messages use a path, and returns the report.
func (s *testNet) awaitPath(path config.UnderlayMode) (r config.UnderlayReport) {
	s.Helper()
	s.await("the path "+path.String(), func() bool {
		r = s.port.Report()
		return r.Path == path
	})
	return r
}

// link applies a function to a device at here.
func (s *testNet) link(name string, do func(netlink.Link) error) {
	s.Helper()
	expect.NoError(s, s.here.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return do(l)
	}))
}

// attached returns the ID of the XDP program at a device, 0 for none.
func (s *testNet) attached(name string) (id uint32) {
	s.Helper()
	s.link(name, func(l netlink.Link) error {
		if x := l.Attrs().Xdp; x != nil && x.Attached {
			id = x.ProgId
		}
		return nil
	})
	return id
}

// attachForeignProgram attaches another program to the device, and returns a function that detaches it.
func (s *testNet) attachForeignProgram() (remove func()) {
	s.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stranger", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	expect.NoError(s, err)
	s.Cleanup(func() { program.Close() })
	var held link.Link
	expect.NoError(s, s.here.Do(func() error {
		l, err := netlink.LinkByName(s.dev)
		if err != nil {
			return err
		}
		held, err = link.AttachXDP(link.XDPOptions{Program: program, Interface: l.Attrs().Index})
		return err
	}))
	s.Cleanup(func() { held.Close() })
	return func() { expect.NoError(s, held.Close()) }
}
