// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
	"github.com/ropewalk/ropewalk/test/expect"
	"github.com/ropewalk/ropewalk/test/namespace"
)

// enterNamespace moves the test's goroutine into a network namespace of its own, without IPv6, so that the
// kernel sends no packets of its own. The thread ends with the goroutine.
func enterNamespace(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("needs a TUN driver: %v", err)
	}
	namespace.Enter(t)
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

func open(t testing.TB, c tun.Config) tun.Device {
	t.Helper()
	d, err := tun.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// host is the network namespace that a device is in.
type host struct {
	t      testing.TB
	link   netlink.Link
	raw    int // sends IP packets
	packet int // receives the packets that leave the interface
}

// newHost gives d an address and sets it up.
func newHost(t testing.TB, d tun.Device) *host {
	t.Helper()
	link, err := netlink.LinkByName(d.Name())
	h := &host{t: t, link: link}
	expect.NoError(t, err)
	addr, err := netlink.ParseAddr(tuntest.Prefix().String())
	expect.NoError(t, err)
	expect.NoError(t, netlink.AddrAdd(link, addr))
	expect.NoError(t, netlink.LinkSetUp(link))
	h.raw, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	expect.NoError(t, err)
	h.packet, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	expect.NoError(t, err)
	t.Cleanup(func() { _, _ = unix.Close(h.raw), unix.Close(h.packet) })
	all := uint16(unix.ETH_P_ALL)
	expect.NoError(t, unix.Bind(h.packet, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: link.Attrs().Index}))
	expect.NoError(t, unix.SetsockoptInt(h.packet, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20))
	expect.NoError(t, unix.SetsockoptTimeval(h.packet, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	return h
}

func (h *host) inject(packet []byte) {
	h.t.Helper()
	expect.NoError(h.t, unix.Sendto(h.raw, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])}))
}

func (h *host) receive() []byte {
	h.t.Helper()
	for {
		buf := make([]byte, 65536)
		n, from, err := unix.Recvfrom(h.packet, buf, 0)
		if err == unix.EINTR || err == unix.ENETDOWN { // reported once after the interface was down
			continue
		}
		expect.NoError(h.t, err)
		if from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_HOST {
			return buf[:n]
		}
	}
}

func (h *host) setUp(up bool) {
	h.t.Helper()
	if up {
		expect.NoError(h.t, netlink.LinkSetUp(h.link))
		return
	}
	expect.NoError(h.t, netlink.LinkSetDown(h.link))
}

func TestTUNContract(t *testing.T) { runContract(t, tun.Config{Name: "rw0"}) }

func TestBusyPollingTUNContract(t *testing.T) {
	runContract(t, tun.Config{Name: "rw0", BusyPoll: true})
}

func runContract(t *testing.T, c tun.Config) {
	tuntest.RunContract(t, func(t *testing.T, queues int) tuntest.Subject {
		enterNamespace(t)
		c.Queues = queues
		d := open(t, c)
		h := newHost(t, d)
		return tuntest.Subject{
			Device: d, Inject: h.inject, Receive: h.receive, SetUp: h.setUp,
			SetMTU: func(mtu int) { expect.NoError(t, netlink.LinkSetMTU(h.link, mtu)) },
			Delete: func() { expect.NoError(t, netlink.LinkDel(h.link)) },
		}
	})
}

func TestSecondOpenReturnsEBUSY(t *testing.T) {
	enterNamespace(t)
	open(t, tun.Config{Name: "rw0", Queues: 2})
	for _, name := range []string{"rw0", "lo"} {
		before := openFiles(t)
		_, err := tun.Open(tun.Config{Name: name, Queues: 2})
		if !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "interface "+name+" already exists") {
			t.Errorf("%s: got error %v, want %v", name, err, unix.EBUSY)
		}
		wantFiles(t, before)
	}
}

func TestFailedOpenLeaksNothing(t *testing.T) {
	enterNamespace(t)
	before := openFiles(t)
	for _, c := range []tun.Config{
		{Name: "rw0", MTU: 1 << 20},
		{Name: "rw0", Queues: 3, MTU: 20},
	} {
		if d, err := tun.Open(c); err == nil {
			d.Close()
			t.Errorf("%+v was opened", c)
		}
		wantFiles(t, before)
		if _, err := netlink.LinkByName("rw0"); err == nil {
			t.Errorf("%+v: the interface is still there", c)
		}
	}
}

func TestCloseLeaksNothing(t *testing.T) {
	enterNamespace(t)
	before := openFiles(t)
	for range 3 { // the name is free again at once
		d := open(t, tun.Config{Name: "rw0", Queues: 4})
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantFiles(t, before)
}

// wantFiles fails unless the descriptors become those of before. The netlink library closes a subscription's socket
// from a goroutine, perhaps a moment after Close.
func wantFiles(t *testing.T, before []string) {
	t.Helper()
	expect.EventuallyNoError(t, "no descriptor leaks", func() error {
		if after := openFiles(t); !slices.Equal(before, after) {
			return fmt.Errorf("%v, then %v", before, after)
		}
		return nil
	})
}

// openFiles lists this process's descriptors.
func openFiles(t *testing.T) (files []string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err == nil {
			files = append(files, fmt.Sprint(e.Name(), " ", target))
		}
	}
	return files
}

func TestPercentDUsesLowestFreeNumber(t *testing.T) {
	enterNamespace(t)
	for _, want := range []string{"rw0", "rw1"} {
		d := open(t, tun.Config{Name: "rw%d", Queues: 2})
		if d.Name() != want {
			t.Errorf("named %s, want %s", d.Name(), want)
		}
	}
}

func TestInterfaceMatchesConfig(t *testing.T) {
	enterNamespace(t)
	open(t, tun.Config{Name: "rw0", Queues: 3, MTU: 1300})
	link, err := netlink.LinkByName("rw0")
	if err != nil {
		t.Fatal(err)
	}
	a := link.Attrs()
	if a.MTU != 1300 || a.TxQLen != tun.QueueLen(3) || a.GSOMaxSize != 65536 || a.NumTxQueues < 3 || a.Flags&net.FlagUp != 0 {
		t.Errorf("MTU %d, queue length %d, gso_max_size %d, %d queues, flags %v",
			a.MTU, a.TxQLen, a.GSOMaxSize, a.NumTxQueues, a.Flags)
	}
	if a.GSOIPv4MaxSize != 0 && a.GSOIPv4MaxSize != 65536 {
		t.Errorf("gso_ipv4_max_size %d", a.GSOIPv4MaxSize)
	}
}

func TestFeaturesFollowConfig(t *testing.T) {
	enterNamespace(t)
	for _, c := range []struct {
		config tun.Config
		want   tun.Features
	}{
		{tun.Config{Name: "rw0", NoUSO: true}, tun.Features{TSO: true}},
		{tun.Config{Name: "rw1", NoTSO: true}, tun.Features{}},
	} {
		here, err := hostnet.CurrentNamespace()
		expect.NoError(t, err)
		c.want.NetNS = uint64(here)
		if got := open(t, c.config).Features(); got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.config, got, c.want)
		}
	}
}

// sendUDPTrain sends segments datagrams of size bytes from the host in one UDP_SEGMENT send.
func sendUDPTrain(t *testing.T, h *host, segments, size int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	expect.NoError(t, err)
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT, size); err != nil {
		t.Skipf("needs UDP_SEGMENT: %v", err)
	}
	expect.NoError(t, unix.Sendto(fd, make([]byte, segments*size), 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{10, 99, 0, 2}}))
}

func TestLargestUDPTrainIsReadWhole(t *testing.T) {
	enterNamespace(t)
	d := open(t, tun.Config{Name: "rw0"})
	if !d.Features().USO {
		t.Skip("needs USO (Linux 6.2)")
	}
	h := newHost(t, d)
	const segments, size = 47, 1392 // the kernel takes no larger one: 65,535 bytes with headers
	buf, sizes := [][]byte{make([]byte, tun.MaxTrain)}, []int{0}
	sendUDPTrain(t, h, segments, size)
	if _, err := d.Queues()[0].Read(buf, sizes); err != nil {
		t.Fatal(err)
	}
	if got, want := sizes[0]-offload.VnetHdrLen, 28+segments*size; got != want {
		t.Errorf("a packet of %d bytes, want %d", got, want)
	}
}

// TestPersistentInterfaceTakesWholeTrains reopens an interface whose gso_max_size is lower, as earlier versions set it.
func TestPersistentInterfaceTakesWholeTrains(t *testing.T) {
	enterNamespace(t)
	c := tun.Config{Name: "rw0", Persist: true}
	d, err := tun.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName("rw0")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetGSOMaxSize(link, 61473); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, c)
	if link, err = netlink.LinkByName("rw0"); err != nil || link.Attrs().GSOMaxSize != 65536 {
		t.Errorf("gso_max_size %d (%v), want 65536", link.Attrs().GSOMaxSize, err)
	}
}

func TestEventsFollowMoveIntoAnotherNamespace(t *testing.T) {
	enterNamespace(t)
	d := open(t, tun.Config{Name: "rw0"})
	there, err := netns.Get()
	expect.NoError(t, err)
	defer there.Close()
	link, err := netlink.LinkByName("rw0")
	expect.NoError(t, err)
	// The goroutine's thread moves on to a second namespace; the interface follows.
	here, err := netns.New()
	expect.NoError(t, err)
	defer here.Close()
	from, err := netlink.NewHandleAt(there)
	expect.NoError(t, err)
	defer from.Close()
	expect.NoError(t, from.LinkSetNsFd(link, int(here)))
	link, err = netlink.LinkByName("rw0")
	expect.NoError(t, err)
	expect.NoError(t, netlink.LinkSetMTU(link, 1333))
	awaitMTU(t, d, 1333)
	expect.NoError(t, netlink.LinkDel(link))
	awaitMTU(t, d, 0)
}

// awaitMTU waits for an event with that MTU; 0 waits for the end of the events.
func awaitMTU(t *testing.T, d tun.Device, mtu int) {
	t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		select {
		case e, ok := <-d.Events():
			if !ok && mtu != 0 {
				t.Fatal("the events ended")
			}
			if !ok || e.MTU == mtu {
				return
			}
		case <-deadline:
			t.Fatalf("no event with MTU %d", mtu)
		}
	}
}

// TestCloseRacesWithAllMethods is for the race detector and for a descriptor used after its close.
func TestCloseRacesWithAllMethods(t *testing.T) {
	enterNamespace(t)
	for range 10 {
		d := open(t, tun.Config{Name: "rw0", Queues: 2})
		newHost(t, d)
		var wg sync.WaitGroup
		for _, q := range d.Queues() {
			wg.Go(func() {
				bufs, sizes := [][]byte{make([]byte, tun.MaxTrain)}, []int{0}
				for {
					if _, err := q.Read(bufs, sizes); errors.Is(err, os.ErrClosed) {
						return
					}
				}
			})
			wg.Go(func() {
				train := append(make([]byte, offload.VnetHdrLen), 0x45)
				for !errors.Is(q.Write([][]byte{train}), os.ErrClosed) {
				}
			})
		}
		wg.Go(func() { _ = d.(tun.Steerer).SetSteering(-1) })
		wg.Go(func() { _ = d.Close() })
		wg.Go(func() { _ = d.Close() })
		wg.Wait()
	}
}
