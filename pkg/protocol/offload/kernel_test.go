// SPDX-License-Identifier: Apache-2.0

package offload

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

// These tests ask the kernel: it routes what a Merger made from one TUN to another, which shows it in single packets,
// cut and summed by the kernel, or as trains for Train to cut.

// What TUNSETOFFLOAD takes (linux/if_tun.h).
const (
	tunCsum = 0x01
	tunTSO4 = 0x02
	tunTSO6 = 0x04
	tunECN  = 0x08
	tunUSO4 = 0x20
	tunUSO6 = 0x40

	allFeatures = tunCsum | tunTSO4 | tunTSO6 | tunECN | tunUSO4 | tunUSO6
)

// router is a network namespace with two TUNs, between which the kernel forwards.
type router struct {
	in, out  int
	counters kernelCounters
}

// newRouter enters a new network namespace, until the test ends.
func newRouter(t testing.TB, uso bool, outFeatures int) router {
	t.Helper()
	features := allFeatures
	if !uso {
		features &^= tunUSO4 | tunUSO6
	}
	enterRouter(t)
	return router{
		in:  openTUN(t, "in", 0, features, "10.9.0.254/24", "fd00::fe/120"),
		out: openTUN(t, "out", 0, outFeatures, "10.9.1.254/24", "fd00::1fe/120"),

		counters: openCounters(t),
	}
}

// enterRouter enters a new network namespace that forwards packets.
func enterRouter(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skip("needs /dev/net/tun")
	}
	enterNamespace(t)
	for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0o644); err != nil {
			t.Skipf("needs a writable /proc/sys: %v", err)
		}
	}
}

func enterNamespace(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		t.Skipf("needs to make a network namespace: %v", err)
	}
	t.Cleanup(func() {
		// A thread that cannot go home stays locked, and ends with the test's goroutine.
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		if err := home.Close(); err != nil {
			t.Error(err)
		}
	})
}

// openTUN returns the descriptor of a TUN that is up and has the addresses.
func openTUN(t testing.TB, name string, flags uint16, features int, addresses ...string) int {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Fatal(err)
	}
	err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, features)
	if errors.Is(err, unix.EINVAL) && features&tunUSO4 != 0 {
		t.Skip("needs USO on TUN (Linux 6.2)")
	}
	if err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			t.Fatal(err)
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	return fd
}

// WriteTrain makes the router a Sink.
func (r router) WriteTrain(buffers [][]byte) error {
	_, err := unix.Writev(r.in, buffers)
	return err
}

// forward sends and returns the n packets that come through. If the kernel counts a drop, forward sends again.
func (r router) forward(t testing.TB, n int, send func()) [][]byte {
	t.Helper()
	for tries := 1; ; tries++ {
		dropped := r.counters.drops(t)
		send()
		out := r.collect(t, n, dropped)
		switch {
		case len(out) >= n:
			return out
		case tries == maxSends || r.counters.drops(t) == dropped:
			t.Fatalf("got %d of %d packets in try %d, the kernel counts\n%s", len(out), n, tries, r.counters)
		}
	}
}

// collect returns the next n packets that come through, fewer if the kernel drops some.
func (r router) collect(t testing.TB, n int, dropped uint64) [][]byte {
	t.Helper()
	var out [][]byte
	for len(out) < n {
		h, p, err := r.waitTrain(t, dropped)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if p != nil {
			out = append(out, splitAll(t, h, p, 64)...)
		}
	}
	return out
}

// readRest returns the packets that came through until now.
func (r router) readRest(t testing.TB) [][]byte {
	t.Helper()
	var out [][]byte
	for {
		h, p, err := r.readTrain()
		if errors.Is(err, unix.EAGAIN) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if p != nil {
			out = append(out, splitAll(t, h, p, 64)...)
		}
	}
}

// waitTrain waits for the next element. The error is EAGAIN if the kernel has dropped more than so many packets, or if none comes for long.
func (r router) waitTrain(t testing.TB, dropped uint64) (h VnetHdr, p []byte, err error) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.out), Events: unix.POLLIN}}, 100)
		late := r.counters.drops(t) != dropped || time.Now().After(deadline)
		if h, p, err = r.readTrain(); late || !errors.Is(err, unix.EAGAIN) {
			return h, p, err
		}
	}
}

// readTrain returns the next element, nil if the kernel itself sends it (ICMPv6).
func (r router) readTrain() (h VnetHdr, p []byte, err error) {
	b := make([]byte, 1<<17)
	size, err := unix.Read(r.out, b)
	if err != nil {
		return h, nil, err
	}
	h.Decode(b)
	p = b[VnetHdrLen:size]
	if tr, ok := packet.FindTransport(p); !ok || tr.Protocol == packet.ICMPv6 {
		return h, nil, nil
	}
	return h, p, nil
}

// forwarded is the packet after a router: a hop less.
func forwarded(p []byte) []byte {
	p = slices.Clone(p)
	if packet.VersionOf(p) == packet.Version6 {
		p[7]--
		return p
	}
	p[8]--
	be.PutUint16(p[10:], 0)
	be.PutUint16(p[10:], ^slowSum(p[:int(p[0]&15)*4]))
	return p
}

var kernelTrains = []struct {
	name string
	spec spec
	n    int
	size int
}{
	{"TCPv4", spec{id: 0xfff0, df: true, options: []byte{1, 1, 1, 1}}, 46, 1380},
	{"TCPv4 CWR", spec{flags: packet.ACK}, 3, 100},
	{"TCPv6", spec{v6: true, tos: 2}, 40, 1380},
	{"UDPv4", spec{udp: true, id: 3}, 46, 1380},
	{"UDPv4 64 small ones", spec{udp: true}, 64, 10},
	{"UDPv4 no checksum", spec{udp: true, zero: true}, 10, 1380},
	{"UDPv6", spec{udp: true, v6: true}, 46, 1300},
}

func TestKernelSplitsMergedTrainsIntoOriginalPackets(t *testing.T) {
	forwardTrains(t, 0)
}

func TestKernelTrainsSplitIntoOriginalPackets(t *testing.T) {
	forwardTrains(t, allFeatures)
}

func forwardTrains(t *testing.T, outFeatures int) {
	for _, tt := range kernelTrains {
		t.Run(tt.name, func(t *testing.T) {
			tt.spec.src, tt.spec.dst = 1, 1 // not the anycast address of all routers of the subnet
			r := newRouter(t, tt.spec.udp, outFeatures&^map[bool]int{false: tunUSO4 | tunUSO6}[tt.spec.udp])
			pkts := tt.spec.run(tt.n, tt.size)
			if tt.name == "TCPv4 CWR" {
				cwr := tt.spec.with(func(s *spec) { s.flags |= packet.CWR; s.payload = pattern(tt.size, 0) })
				pkts[0] = cwr.packet()
			}
			got := r.forward(t, len(pkts), func() { r.merge(t, pkts) })
			tt.spec.zero = false // the kernel completed the checksums
			if tt.spec.udp {
				pkts = tt.spec.run(tt.n, tt.size)
			}
			for i := range pkts {
				pkts[i] = forwarded(pkts[i])
			}
			diff(t, got, pkts)
		})
	}
}

// merge writes the packets as trains of a Merger.
func (r router) merge(t testing.TB, pkts [][]byte) {
	t.Helper()
	m := NewMerger(true)
	for _, p := range pkts {
		m.Add(p)
	}
	if failed, err := m.Flush(r); err != nil {
		t.Fatalf("%d packets rejected: %v", failed, err)
	}
}

func TestSocketsReceiveMergedDatagrams(t *testing.T) {
	for _, zero := range []bool{false, true} {
		t.Run(fmt.Sprintf("zero checksum %v", zero), func(t *testing.T) {
			r := newRouter(t, true, 0)
			conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 1, 254), Port: 4789})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			m := NewMerger(true)
			pkts := spec{udp: true, zero: zero, dst: 254, port: 9}.run(20, 1000)
			for _, p := range pkts {
				m.Add(p)
			}
			if _, err := m.Flush(r); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 1<<16)
			for i, p := range pkts {
				n, err := conn.Read(buf)
				if err != nil {
					t.Fatalf("datagram %d: %v", i, err)
				}
				diff(t, [][]byte{buf[:n]}, [][]byte{p[28:]})
			}
		})
	}
}

func TestKernelAcceptsSinglePackets(t *testing.T) {
	r := newRouter(t, false, 0)
	host := spec{src: 1, dst: 1}
	udp, v6 := host, host
	udp.udp, v6.v6 = true, true
	// The first is verified for the second's sake, so its header says DATA_VALID.
	pkts := slices.Concat(host.run(2, 100), udp.run(1, 10), v6.run(1, 10))
	pkts[1][60] ^= 1
	got := r.forward(t, len(pkts), func() { r.merge(t, pkts) })
	for i := range pkts {
		pkts[i] = forwarded(pkts[i])
	}
	diff(t, got, pkts)
}
