// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestFramesArriveInOrder sends over two pairs of queues at once, and tracks the owner of every frame on both
// ends.
func TestFramesArriveInOrder(t *testing.T) {
	l := newLink(t, 2)
	l.redirect(t, 2, link.XDPDriverMode, 0)
	for queue := range 2 {
		from := l.ends[0].open(t, Config{Queue: queue, Mode: Copy, RxFrames: 64, TxFrames: 128})
		to := l.ends[1].open(t, Config{Queue: queue, Mode: Copy, RxFrames: 128, TxFrames: 64})
		if from.Features().Mode != Copy {
			t.Errorf("got mode %v, want %v", from.Features().Mode, Copy)
		}
		t.Run(fmt.Sprint(queue), func(t *testing.T) {
			t.Parallel()
			exchange(t, l, from, to, uint64(queue))
		})
	}
}

// exchange sends windows of frames of all sizes, in batches of all sizes.
func exchange(t *testing.T, l *vethPair, from, to *Socket, seed uint64) {
	const windows = 200
	x := &exchanger{t: t, l: l, from: from, to: to, left: newOracle(64, 128), right: newOracle(128, 64)}
	r := rand.New(rand.NewPCG(seed, 3))
	for range windows {
		for rest := 1 + r.IntN(100); rest > 0; {
			rest -= x.send(min(rest, 1+r.IntN(40)), r)
		}
		expect.NoError(t, from.WakeTx())
		last := x.sent - 1
		await(t, to, "the frames of a window", func() bool {
			x.receive(1 + r.IntN(len(x.batch)))
			return x.next > last
		})
	}
	await(t, to, "the remaining frames", func() bool { return x.receive(len(x.batch)) == 0 })
	await(t, from, "the completions", func() bool { from.tx.reap(); return from.Frames().TxKernel == 0 })
	checkFramesAre(t, from, Frames{RxKernel: 64, TxFree: 128})
	checkFramesAre(t, to, Frames{RxKernel: 128, TxFree: 64})
	out, err := from.Stats()
	expect.NoError(t, err)
	in, err := to.Stats()
	expect.NoError(t, err)
	if out.Sent != x.sent || out.Completed != x.sent || in.Received != x.received || x.received != x.sent ||
		in.RxDropped+in.RxRingFull+in.RxInvalid+out.TxInvalid+out.TxRefused+out.FrameOwnershipErrors+in.FrameOwnershipErrors+out.Rejected != 0 {
		t.Errorf("%d sent, %d received; %+v; %+v", x.sent, x.received, out, in)
	}
}

// exchanger tracks the owners of the frames at both ends.
type exchanger struct {
	t                    *testing.T
	l                    *vethPair
	from, to             *Socket
	left, right          oracle
	batch                [128]Desc
	sent, received, next uint64 // next is the last received number plus one
}

// send submits at most n frames, and returns their number.
func (x *exchanger) send(n int, r *rand.Rand) int {
	batch := x.batch[:x.from.Reserve(x.batch[:n])]
	x.left.reserved(x.t, batch)
	for i := range batch {
		batch[i].Len = uint32(60 + r.IntN(1514-60+1))
		x.l.number(x.from.Frame(batch[i]), x.sent)
		x.sent++
	}
	if got := x.from.Submit(batch); got != len(batch) {
		x.t.Fatalf("submitted %d of %d", got, len(batch))
	}
	x.left.move(x.t, batch, "tx user", "tx kernel")
	return len(batch)
}

// receive receives at most n frames and refills them.
func (x *exchanger) receive(n int) int {
	batch := x.batch[:x.to.Receive(x.batch[:n])]
	x.right.move(x.t, batch, "rx kernel", "rx user")
	for _, d := range batch {
		got := numberOf(x.t, x.to.Frame(d))
		if got != x.next {
			x.t.Fatalf("frame %d, want %d", got, x.next)
		}
		x.next = got + 1
		x.received++
	}
	x.to.Refill(batch)
	x.right.move(x.t, batch, "rx user", "rx kernel")
	expect.NoError(x.t, x.to.WakeRx())
	return len(batch)
}

func newOracle(rx, tx uint64) oracle {
	o := oracle{}
	for i := range rx {
		o[i] = "rx kernel"
	}
	for i := range tx {
		o[rx+i] = "free"
	}
	return o
}

// reserved moves frames to the user. A frame still at "tx kernel" counts as completed, as Reserve returns only free frames.
func (o oracle) reserved(t *testing.T, descs []Desc) {
	t.Helper()
	for _, d := range descs {
		if o[d.Addr/2048] == "tx user" {
			t.Fatalf("frame %d is reserved twice", d.Addr/2048)
		}
		o[d.Addr/2048] = "tx user"
	}
}

func TestPacketsDroppedWithoutFrameAreCounted(t *testing.T) {
	l := newLink(t, 1)
	l.redirect(t, 1, link.XDPDriverMode, 0)
	from := l.ends[0].open(t, Config{RxFrames: 64, TxFrames: 128})
	to := l.ends[1].open(t, Config{RxFrames: 64, TxFrames: 64})
	const extra = 10
	batch := make([]Desc, 128)
	n := from.Reserve(batch[:64+extra])
	for i := range batch[:n] {
		batch[i].Len = 60
		l.number(from.Frame(batch[i]), uint64(i))
	}
	from.Submit(batch[:n])
	expect.NoError(t, from.WakeTx())
	total := 0
	await(t, to, "all packets", func() bool {
		total += to.Receive(batch)
		stats, err := to.Stats()
		expect.NoError(t, err)
		return total == 64 && stats.RxDropped == extra
	})
	checkFramesAre(t, to, Frames{RxUser: 64, TxFree: 64})
}

// TestCloseUnderTrafficReleasesEverything closes and reopens the receiving end under traffic, and finally closes the sending
// one, with frames in flight. Each new Socket finds its queue still held by the last.
func TestCloseUnderTrafficReleasesEverything(t *testing.T) {
	l := newLink(t, 1)
	l.redirect(t, 1, link.XDPDriverMode, 0)
	before := openResources()
	from := l.ends[0].open(t, Config{Mode: Copy, TxFrames: 256})
	stop := make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() { flood(t, l, from, stop) })
	var batch [32]Desc
	for range 8 {
		to := l.ends[1].open(t, Config{Mode: Copy, RxFrames: 256, TxFrames: 64})
		for total := 0; total < 1000; {
			await(t, to, "packets", func() bool {
				n := to.Receive(batch[:])
				to.Refill(batch[:n/2]) // the others stay with the caller
				total += n
				return n > 0 || to.Frames().RxKernel == 0
			})
			if to.Frames().RxKernel == 0 {
				break
			}
		}
		if f := to.Frames(); f.RxKernel+f.RxUser != 256 || f.TxFree != 64 {
			t.Errorf("frames %+v", f)
		}
		expect.NoError(t, to.Close())
		if stats, err := to.Stats(); err != nil || stats.FrameOwnershipErrors != 0 || stats.Received == 0 {
			t.Errorf("got stats %+v, error %v, want no error", stats, err)
		}
	}
	close(stop)
	sender.Wait()
	if f := from.Frames(); f.TxFree+f.TxUser+f.TxKernel != 256 {
		t.Errorf("frames %+v", f)
	}
	expect.NoError(t, from.Close())
	if after := openResources(); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// flood sends until stop is closed, and leaves frames in flight.
func flood(t *testing.T, l *vethPair, s *Socket, stop <-chan struct{}) {
	var batch [64]Desc
	for number := uint64(0); ; {
		select {
		case <-stop:
			return
		default:
		}
		n := s.Reserve(batch[:])
		for i := range batch[:n] {
			batch[i].Len = 200
			l.number(s.Frame(batch[i]), number)
			number++
		}
		s.Submit(batch[:n])
		if err := s.WakeTx(); err != nil {
			t.Error(err)
			return
		}
	}
}

func TestSocketResumesAfterDeviceDown(t *testing.T) {
	l := newLink(t, 1)
	l.redirect(t, 1, link.XDPDriverMode, 0)
	from, to := l.ends[0].open(t, Config{}), l.ends[1].open(t, Config{})
	expect.NoError(t, from.Check())
	set := func(change func(netlink.Link) error) {
		expect.NoError(t, l.ends[0].host.Do(func() error {
			device, err := netlink.LinkByIndex(l.ends[0].index)
			if err != nil {
				return err
			}
			return change(device)
		}))
	}
	set(netlink.LinkSetDown)
	one := make([]Desc, 1)
	from.Reserve(one)
	one[0].Len = 60
	l.number(from.Frame(one[0]), 7)
	from.Submit(one)
	if err := from.WakeTx(); !errors.Is(err, ErrDown) || from.Pending() != 1 {
		t.Errorf("WakeTx gives %v, %d pending", err, from.Pending())
	}
	if err := from.Check(); !errors.Is(err, ErrDown) {
		t.Errorf("Check gives %v", err)
	}
	set(netlink.LinkSetUp)
	await(t, to, "the frame that waited", func() bool {
		expect.NoError(t, from.WakeTx())
		expect.NoError(t, from.Check())
		return to.Receive(one) == 1 && numberOf(t, to.Frame(one[0])) == 7
	})
}

func TestDeletedDeviceReturnsErrGone(t *testing.T) {
	l := newLink(t, 1)
	l.redirect(t, 1, link.XDPDriverMode, 0)
	s := l.ends[0].open(t, Config{TxFrames: 64})
	submit(t, s, 1)
	expect.NoError(t, l.ends[0].host.Do(func() error {
		device, err := netlink.LinkByIndex(l.ends[0].index)
		if err != nil {
			return err
		}
		return netlink.LinkDel(device)
	}))
	if err := s.Check(); !errors.Is(err, ErrGone) || errors.Is(err, ErrDown) {
		t.Errorf("Check gives %v", err)
	}
	if err := s.WakeTx(); !errors.Is(err, ErrGone) {
		t.Errorf("WakeTx gives %v", err)
	}
	if _, err := s.Stats(); err != nil {
		t.Error(err)
	}
	_, err := open(Config{Interface: l.ends[0].index}, l.ends[0])
	if !errors.Is(err, ErrGone) {
		t.Errorf("Open gives %v", err)
	}
}

func TestOpenDistinguishesMissingAndBusyQueues(t *testing.T) {
	l := newLink(t, 2)
	e := l.ends[0]
	_, err := open(Config{Interface: e.index, Queue: 2}, e)
	if !errors.Is(err, ErrNoQueue) {
		t.Errorf("a missing queue: got error %v, want %v", err, ErrNoQueue)
	}
	e.open(t, Config{Queue: 1})
	e.patience = 0
	_, err = open(Config{Interface: e.index, Queue: 1}, e)
	if !errors.Is(err, ErrBusy) {
		t.Errorf("a queue in use: got error %v, want %v", err, ErrBusy)
	}
	_, err = open(Config{Interface: e.index, Mode: ZeroCopy}, e)
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("zero-copy on a veth: got error %v, want %v", err, errors.ErrUnsupported)
	}
}

// TestOffloadedChecksumsAreCorrect sends UDP to a kernel socket, which drops datagrams with a wrong checksum.
func TestOffloadedChecksumsAreCorrect(t *testing.T) {
	l := newLink(t, 1)
	src, dst := netip.MustParseAddrPort("10.9.0.1:1000"), netip.MustParseAddrPort("10.9.0.2:2000")
	expect.NoError(t, l.ends[1].host.SetUp(l.ends[1].device, 0, netip.PrefixFrom(dst.Addr(), 24)))
	var receiver *net.UDPConn
	expect.NoError(t, l.ends[1].host.Do(func() (err error) {
		receiver, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(dst))
		return err
	}))
	t.Cleanup(func() { receiver.Close() })
	s := l.ends[0].open(t, Config{TxChecksum: true, TxFrames: 64})
	if !s.Features().TxChecksum {
		t.Skip("needs XDP_UMEM_TX_METADATA_LEN (Linux 6.11)")
	}
	send := func(payload string, offload bool) {
		d := make([]Desc, 1)
		s.Reserve(d)
		d[0].Len = uint32(42 + len(payload))
		udpFrame(s.Frame(d[0]), l.ends[1].mac, src, dst, payload)
		if offload && !s.OffloadChecksum(&d[0], 34, 6) {
			t.Error("rejected")
		}
		if s.Submit(d) != 1 {
			t.Error("not submitted")
		}
		expect.NoError(t, s.WakeTx())
	}
	var got [100]byte
	for range 20 { // the backlog on the way is shared with the whole machine
		send("the checksum is that of the pseudo header alone", false)
		send("the checksum is whole", true)
		expect.NoError(t, receiver.SetReadDeadline(time.Now().Add(time.Second)))
		n, err := receiver.Read(got[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if want := "the checksum is whole"; err != nil || string(got[:n]) != want {
			t.Errorf("received %q, error %v, want %q, no error", got[:n], err, want)
		}
		return
	}
	t.Error("nothing received")
}

// udpFrame builds Ethernet, IPv4 and UDP with the checksum of the pseudo header.
func udpFrame(frame []byte, to net.HardwareAddr, src, dst netip.AddrPort, payload string) {
	clear(frame)
	copy(frame, to)
	frame[6] = 2
	binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_IP)
	ip, udp := frame[14:34], frame[34:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(frame)-14))
	copy(ip[12:], src.Addr().AsSlice())
	copy(ip[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^onesSum(0, ip))
	binary.BigEndian.PutUint16(udp[0:], src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], onesSum(uint32(unix.IPPROTO_UDP+len(udp)), ip[12:20]))
	copy(udp[8:], payload)
}

// onesSum is the Internet checksum's sum (RFC 1071), of an even number of bytes.
func onesSum(sum uint32, b []byte) uint16 {
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// TestClosedSocketLeavesPacketsToStack: closing removes it from the map, and frames go to the stack again.
func TestClosedSocketLeavesPacketsToStack(t *testing.T) {
	l := newLink(t, 1)
	l.redirect(t, 1, link.XDPDriverMode, 0)
	var stack int
	expect.NoError(t, l.ends[1].host.Do(func() (err error) {
		stack, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(networkOrder(etherType)))
		return err
	}))
	defer unix.Close(stack)
	expect.NoError(t, unix.SetsockoptTimeval(stack, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(deadline / time.Second)}))
	from, to := l.ends[0].open(t, Config{}), l.ends[1].open(t, Config{})
	one := make([]Desc, 1)
	send := func(n uint64) {
		from.Reserve(one)
		one[0].Len = 60
		l.number(from.Frame(one[0]), n)
		from.Submit(one)
		expect.NoError(t, from.WakeTx())
	}
	send(1)
	await(t, to, "a frame", func() bool { return to.Receive(one) == 1 })
	expect.NoError(t, to.Close())
	send(2)
	var frame [100]byte
	n, err := unix.Read(stack, frame[:])
	if err != nil || n != 60 || numberOf(t, frame[:n]) != 2 {
		t.Errorf("the stack received % x, %v", frame[:n], err)
	}
}

// networkOrder converts v to network byte order.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func TestProbeReportsVeth(t *testing.T) {
	l := newLink(t, 1)
	c, err := l.ends[0].probe(l.ends[0].index)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("needs Linux 6.3: %v", err)
	}
	if err != nil || c.ZeroCopy || c.TxChecksum { // Capabilities.TxChecksum is for zero-copy; copy mode always has it
		t.Errorf("got %+v, error %v, want ZeroCopy and TxChecksum false, no error", c, err)
	}
	if _, err := l.ends[0].probe(1 << 30); !errors.Is(err, ErrGone) {
		t.Errorf("a missing device: got error %v, want %v", err, ErrGone)
	}
	l.redirect(t, 1, link.XDPDriverMode, 0)
	c, err = l.ends[0].probe(l.ends[0].index)
	if err != nil || !c.Native {
		t.Errorf("with a program at the other end: got %+v, error %v, want Native true, no error", c, err)
	}
}
