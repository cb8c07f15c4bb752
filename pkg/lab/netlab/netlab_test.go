// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

var (
	addrsA = []netip.Prefix{netip.MustParsePrefix("192.168.77.1/24"), netip.MustParsePrefix("fd77::1/64")}
	addrsB = []netip.Prefix{netip.MustParsePrefix("192.168.77.2/24"), netip.MustParsePrefix("fd77::2/64")}
)

func newLab(t *testing.T) *Lab {
	t.Helper()
	lab, err := New("test")
	if errors.Is(err, ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
		if left := remains(lab.Name()); len(left) != 0 {
			t.Errorf("after Close, these files remain: got %v, want length 0", left)
		}
	})
	return lab
}

func newHost(t *testing.T, lab *Lab, name string) *Host {
	t.Helper()
	h, err := lab.Host(name)
	if errors.Is(err, ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func newPair(t *testing.T, queues int) (a, b *Host) {
	t.Helper()
	lab := newLab(t)
	a, b = newHost(t, lab, "a"), newHost(t, lab, "b")
	_, err := lab.Cable(a, b, CableConfig{Queues: queues, AddrsA: addrsA, AddrsB: addrsB})
	if err != nil {
		t.Fatal(err)
	}
	return a, b
}

// remains returns the files of a lab that still exist.
func remains(lab string) []string {
	names, _ := filepath.Glob(filepath.Join(netnsDir, lab+"-*"))
	state, _ := filepath.Glob(filepath.Join(stateDir, lab))
	return append(names, state...)
}

func listenUDP(t *testing.T, h *Host, addr string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	err := h.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestCableCarriesBothFamiliesAtOnce(t *testing.T) {
	a, b := newPair(t, 4)
	for _, c := range []struct{ from, to string }{
		{"192.168.77.1:0", "192.168.77.2:7000"},
		{"[fd77::1]:0", "[fd77::2]:7000"},
	} {
		rx, tx := listenUDP(t, b, c.to), listenUDP(t, a, c.from)
		if _, err := tx.WriteToUDPAddrPort([]byte("hello"), netip.MustParseAddrPort(c.to)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		_ = rx.SetReadDeadline(time.Now().Add(20 * time.Second))
		n, err := rx.Read(buf)
		if err != nil || string(buf[:n]) != "hello" {
			t.Errorf("%s to %s: got %q, %v", c.from, c.to, buf[:n], err)
		}
	}
}

func TestCableHasConfiguredQueuesAndMTU(t *testing.T) {
	lab := newLab(t)
	a, b := newHost(t, lab, "a"), newHost(t, lab, "b")
	c, err := lab.Cable(a, b, CableConfig{Queues: 8, MTU: 1800})
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []struct {
		host *Host
		dev  string
	}{{a, c.DeviceA}, {b, c.DeviceB}} {
		var dev *net.Interface
		err := end.host.Do(func() (err error) {
			dev, err = net.InterfaceByName(end.dev)
			return err
		})
		if err != nil || dev.MTU != 1800 || dev.Flags&net.FlagUp == 0 {
			t.Errorf("%s: got %+v, error %v; want MTU 1800, up", end.dev, dev, err)
		}
		if rx, tx := queuesOf(t, end.host, end.dev); rx != 8 || tx != 8 {
			t.Errorf("%s: got %d receive and %d transmit queues, want 8 and 8", end.dev, rx, tx)
		}
	}
}

func queuesOf(t *testing.T, h *Host, dev string) (rx, tx int) {
	t.Helper()
	err := h.netlink(func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(dev)
		if err == nil {
			rx, tx = link.Attrs().NumRxQueues, link.Attrs().NumTxQueues
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return rx, tx
}

// TestTxDroppedCountsFullTUNQueue sends more to a TUN that nobody reads than its queue holds.
func TestTxDroppedCountsFullTUNQueue(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	const queue, sent = 10, 30
	tun := &netlink.Tuntap{
		LinkAttrs: netlink.LinkAttrs{Name: "tun0", TxQLen: queue},
		Mode:      netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI, NonPersist: true, Queues: 1,
	}
	expect.NoError(t, h.Do(func() error { return netlink.LinkAdd(tun) }))
	defer func() {
		for _, f := range tun.Fds {
			_ = f.Close()
		}
	}()
	expect.NoError(t, h.netlink(func(nl *netlink.Handle) error { return nl.LinkSetTxQLen(tun, queue) }))
	expect.NoError(t, h.SetUp("tun0", 0, netip.MustParsePrefix("10.9.0.1/24")))
	expect.NoError(t, h.Do(func() error {
		c, err := net.Dial("udp4", "10.9.0.2:9")
		for i := 0; i < sent && err == nil; i++ {
			_, err = c.Write([]byte("x"))
		}
		return errors.Join(err, c.Close())
	}))
	n, err := h.TxDropped("tun0")
	expect.NoError(t, err)
	if n < sent-queue {
		t.Errorf("%d packets were dropped of %d that were sent to a queue of %d", n, sent, queue)
	}
	if _, err := h.TxDropped("tun1"); err == nil {
		t.Error("got no error for a device that does not exist")
	}
}

func TestFailedCableSetupRemovesCable(t *testing.T) {
	lab := newLab(t)
	a, b := newHost(t, lab, "a"), newHost(t, lab, "b")
	twice := append(addrsA[:1:1], addrsA[0])
	if c, err := lab.Cable(a, b, CableConfig{AddrsB: twice}); err == nil {
		t.Fatalf("Cable with a duplicate address: got %+v, want an error", c)
	}
	for _, h := range []*Host{a, b} {
		if err := h.netlink(func(nl *netlink.Handle) error { _, err := nl.LinkByName("cable0"); return err }); err == nil {
			t.Errorf("%s still has the device cable0", h.Name())
		}
	}
}

func TestDoKeepsCallersNamespace(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := netnsOf(t)
	var inside string
	if err := h.Do(func() error { inside = netnsOf(t); return nil }); err != nil {
		t.Fatal(err)
	}
	if after := netnsOf(t); after != before || inside == before {
		t.Errorf("network namespace before Do %s, inside %s, after %s", before, inside, after)
	}
}

// TestNoThreadIsLeftInAHost also covers a function that ends its goroutine, as t.FailNow does.
func TestNoThreadIsLeftInAHost(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	for range 20 {
		if err := h.Do(func() error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Do(func() error { runtime.Goexit(); return nil }); !errors.Is(err, errExited) {
		t.Errorf("Do with a function that ends its goroutine: got error %v, want %v", err, errExited)
	}
	var ns unix.Stat_t
	if err := unix.Stat(h.Path(), &ns); err != nil {
		t.Fatal(err)
	}
	expect.Eventually(t, "all threads to be outside the host", func() bool {
		tasks, _ := filepath.Glob("/proc/self/task/*/ns/net")
		for _, task := range tasks {
			var st unix.Stat_t
			if unix.Stat(task, &st) == nil && st.Ino == ns.Ino {
				return false
			}
		}
		return true
	})
}

func netnsOf(t *testing.T) string {
	t.Helper()
	h, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	return h.UniqueId()
}

func TestDoReturnsTheFunctionsError(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	want := errors.New("no")
	if err := h.Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}

func TestCommandRunsInsideTheHost(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	out, err := h.Command(t.Context(), "readlink", "/proc/self/ns/net").Output()
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(h.Path(), &st); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("net:[%d]", st.Ino); strings.TrimSpace(string(out)) != want {
		t.Errorf("got %s, want %s", out, want)
	}
}

func TestCommandGetsTermWhenItsContextEnds(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := h.Command(ctx, "/bin/sh", "-c", "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	cancel()
	n, err := out.Read(buf)
	if err != nil || string(buf[:n]) != "term\n" {
		t.Errorf("got %q, error %v, want no error", buf[:n], err)
	}
	_ = cmd.Wait()
}

func TestCloseKillsProcessesAndRemovesEverything(t *testing.T) {
	lab, err := New("test")
	if errors.Is(err, ErrPrivileges) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t, lab, "a")
	cmd := h.Command(context.Background(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := lab.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("Wait: got no error, want one for the killed process")
	}
	if left := remains(lab.Name()); len(left) != 0 {
		t.Errorf("after Close, these files remain: got %v, want length 0", left)
	}
	if err := lab.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
	if err := h.Do(func() error { return nil }); !errors.Is(err, errClosed) {
		t.Errorf("using a host of a closed lab: got error %v, want %v", err, errClosed)
	}
}

// TestSweepRemovesNamespacesOfKilledProcess starts this test binary again, as the process to kill.
func TestSweepRemovesNamespacesOfKilledProcess(t *testing.T) {
	if os.Getenv("NETLAB_TEST_VICTIM") != "" {
		lab := newLab(t)
		h := newHost(t, lab, "a")
		if err := h.Command(context.Background(), "sleep", "1000").Start(); err != nil {
			t.Fatal(err)
		}
		fmt.Printf("lab %s\n", lab.Name())
		select {}
	}
	live := newLab(t) // also skips without privileges
	newHost(t, live, "a")

	victim := exec.Command("/proc/self/exe", "-test.run=^TestSweepRemovesNamespacesOfKilledProcess$")
	victim.Env = append(os.Environ(), "NETLAB_TEST_VICTIM=1")
	out, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var name string
	if _, err := fmt.Fscanf(out, "lab %s\n", &name); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	if len(remains(name)) != 2 {
		t.Fatal("Sweep removed a lab in use by another process")
	}
	_ = victim.Process.Kill()
	_ = victim.Wait()
	expect.Eventually(t, "the namespace is removed", func() bool { // by this Sweep, or by one of another test, which this one leaves the lab to
		if err := Sweep(); err != nil {
			t.Fatal(err)
		}
		return len(remains(name)) == 0
	})
	if len(remains(live.Name())) != 2 {
		t.Error("Sweep removed a lab in use by this process")
	}
}

// TestLabClosesAfterFirstNamespaceOfIP starts this test binary again in a mount namespace whose /run is empty, as after a boot: the first
// `ip netns add` then makes /run/netns a mount point, if nobody has done so.
func TestLabClosesAfterFirstNamespaceOfIP(t *testing.T) {
	if os.Getenv("NETLAB_TEST_BOOTED") != "" {
		expect.NoError(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
		newHost(t, newLab(t), "a")
		if out, err := exec.Command("ip", "netns", "add", "other").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	newLab(t) // skips without privileges
	booted := exec.Command("/proc/self/exe", "-test.run=^TestLabClosesAfterFirstNamespaceOfIP$")
	booted.Env = append(os.Environ(), "NETLAB_TEST_BOOTED=1")
	booted.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if out, err := booted.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	for _, name := range []string{"", "a-b", "../x", "Upper", strings.Repeat("x", 17)} {
		if lab, err := New(name); err == nil {
			t.Errorf("New(%q): got lab %s, want an error", name, lab.Name())
			_ = lab.Close()
		}
	}
	lab := newLab(t)
	for _, name := range []string{"", "a/b", "a b"} {
		if _, err := lab.Host(name); err == nil {
			t.Errorf("Host(%q): got no error", name)
		}
	}
	first := newHost(t, lab, "twice")
	if _, err := lab.Host("twice"); err == nil || !strings.Contains(err.Error(), "already has a host of that name") {
		t.Errorf("a second host of one name: %v", err)
	}
	if _, err := os.Stat(first.Path()); err != nil {
		t.Errorf("the first host of the name: %v", err)
	}
}

func TestPermissionErrorsNameRequiredPrivileges(t *testing.T) {
	for _, errno := range []error{unix.EPERM, unix.EACCES} {
		if err := explain(errno); !errors.Is(err, ErrPrivileges) || !errors.Is(err, errno) {
			t.Errorf("explain(%v): got %v, want an error that wraps it and ErrPrivileges", errno, err)
		}
	}
	refused := explain(fmt.Errorf("opening a packet socket: %w", unix.EPERM)).Error()
	if !strings.Contains(refused, "CAP_NET_RAW") || !strings.Contains(refused, "packet socket") {
		t.Errorf("got %q, want CAP_NET_RAW and the failed call in it", refused)
	}
	if err := explain(unix.ENOENT); errors.Is(err, ErrPrivileges) {
		t.Errorf("explain(ENOENT): got %v, want no ErrPrivileges", err)
	}
}

func TestCaptureSeesEveryPacketOnce(t *testing.T) {
	const count = 500
	a, b := newPair(t, 4)
	var in, out, wrong atomic.Int64
	c, err := a.Capture(CaptureConfig{Device: "cable0", Queues: 4, SnapLen: 100, Handle: func(p Packet) {
		if !bytes.Contains(p.Data, []byte("marker")) {
			return
		}
		if len(p.Data) != 100 || p.Len != 14+20+8+200 {
			wrong.Add(1)
		}
		if p.Outgoing {
			out.Add(1)
		} else {
			in.Add(1)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	connA, connB := listenUDP(t, a, "192.168.77.1:7001"), listenUDP(t, b, "192.168.77.2:7001")
	payload := append([]byte("marker"), make([]byte, 194)...)
	for range count {
		sendAndReceive(t, connA, connB, payload, "192.168.77.2:7001")
		sendAndReceive(t, connB, connA, payload, "192.168.77.1:7001")
	}
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if out.Load() != count || in.Load() != count || wrong.Load() != 0 {
		t.Errorf("got %d outgoing and %d incoming packets, %d of wrong length; want %d, %d, 0; stats %+v",
			out.Load(), in.Load(), wrong.Load(), count, count, c.Stats())
	}
	if st := c.Stats(); st.Missed != 0 || st.Seen < 2*count {
		t.Errorf("got stats %+v, want at least %d seen, none missed", st, 2*count)
	}
	checkQueues(t, c, count)
}

// checkQueues accepts up to 100 additional packets, for address resolution.
func checkQueues(t *testing.T, c *Capture, count uint64) {
	t.Helper()
	queues, err := c.Queues()
	if err != nil {
		t.Fatal(err)
	}
	if queues == nil {
		t.Skip("the kernel or this process's capabilities forbid eBPF: no queue counters")
	}
	var sum QueueCount
	for _, q := range queues {
		sum.Packets += q.Packets
		sum.Bytes += q.Bytes
	}
	if len(queues) != 4 || sum.Packets < count || sum.Packets > count+100 || sum.Bytes < count*242 {
		t.Errorf("got queues %+v, want 4 with %d packets in all", queues, count)
	}
}

func sendAndReceive(t *testing.T, from, to *net.UDPConn, payload []byte, addr string) {
	t.Helper()
	if _, err := from.WriteToUDPAddrPort(payload, netip.MustParseAddrPort(addr)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 2048)
	_ = to.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := to.Read(buf); err != nil {
		t.Fatal(err)
	}
}

func TestCaptureKeepsSomePacketsWhole(t *testing.T) {
	for _, oneIn := range []int{1, 4} {
		a, b := newPair(t, 1)
		var whole, short atomic.Int64
		c, err := a.Capture(CaptureConfig{Device: "cable0", SnapLen: 100, FullPacketOneIn: oneIn, Handle: func(p Packet) {
			switch {
			case !p.Outgoing || p.Len != 14+20+8+1000:
			case len(p.Data) == p.Len:
				whole.Add(1)
			case len(p.Data) == 100:
				short.Add(1)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if q, _ := c.Queues(); q == nil {
			t.Skip("the kernel or this process's capabilities forbid eBPF: no whole packets")
		}
		tx, rx := listenUDP(t, a, "192.168.77.1:7003"), listenUDP(t, b, "192.168.77.2:7003")
		for range 400 {
			sendAndReceive(t, tx, rx, make([]byte, 1000), "192.168.77.2:7003")
		}
		if err := c.Stop(); err != nil {
			t.Fatal(err)
		}
		// The selection is random. With 400 packets, the chance that none is whole is below 10^-49.
		if whole.Load()+short.Load() != 400 || whole.Load() == 0 || (short.Load() == 0) != (oneIn == 1) {
			t.Errorf("FullPacketOneIn %d: got %d whole and %d truncated packets of 400", oneIn, whole.Load(), short.Load())
		}
	}
}

func TestQueueCountsCountTheSegmentsOfATrain(t *testing.T) {
	a, b := newPair(t, 4)
	c, err := a.Capture(CaptureConfig{Device: "cable0", Queues: 4, Handle: func(Packet) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	tx, rx := listenUDP(t, a, "192.168.77.1:7002"), listenUDP(t, b, "192.168.77.2:7002")
	sendAndReceive(t, tx, rx, []byte("resolve"), "192.168.77.2:7002")
	before, _ := c.Queues()
	if before == nil {
		t.Skip("the kernel or this process's capabilities forbid eBPF: no queue counters")
	}
	raw, _ := tx.SyscallConn()
	_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 100) })
	if err != nil {
		t.Skipf("no UDP_SEGMENT: %v", err)
	}
	sendAndReceive(t, tx, rx, make([]byte, 1000), "192.168.77.2:7002")
	after, _ := c.Queues()
	for i := range after {
		p, tr := after[i].Packets-before[i].Packets, after[i].Trains-before[i].Trains
		if tr == 1 && p == 10 {
			return
		}
	}
	t.Errorf("want one queue with 1 more train and 10 more packets; before %+v, after %+v", before, after)
}

func TestCaptureOnAMissingDeviceFailsAndLeaksNothing(t *testing.T) {
	h := newHost(t, newLab(t), "a")
	before := openFiles(t)
	for range 10 {
		if _, err := h.Capture(CaptureConfig{Device: "nosuch", Handle: func(Packet) {}}); err == nil {
			t.Fatal("capture on a device that does not exist: got no error")
		}
	}
	if after := openFiles(t); after > before {
		t.Errorf("got %d open descriptors afterwards, want at most %d", after, before)
	}
}

func TestCloseReturnsAllDescriptors(t *testing.T) {
	warm := newLab(t)
	newHost(t, warm, "a")
	before := openFiles(t)
	for range 3 {
		lab, err := New("test")
		if err != nil {
			t.Fatal(err)
		}
		a, b := newHost(t, lab, "a"), newHost(t, lab, "b")
		if _, err := lab.Cable(a, b, CableConfig{Queues: 2}); err != nil {
			t.Fatal(err)
		}
		c, err := a.Capture(CaptureConfig{Device: "cable0", Handle: func(Packet) {}})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.Close(), lab.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if after := openFiles(t); after > before {
		t.Errorf("got %d open descriptors afterwards, want at most %d", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}
