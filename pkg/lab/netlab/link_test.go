// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// offer adds an element of n bytes that begins with a number, and reports whether it was accepted.
func offer(t *testing.T, q *linkQueue, now time.Duration, number uint64, n int) bool {
	t.Helper()
	buf := q.reserve()
	if buf == nil {
		t.Fatalf("the ring is full after %d elements", q.count)
	}
	binary.NativeEndian.PutUint64(buf, number)
	return q.commit(int64(now), n, n)
}

// take removes the oldest element.
func take(t *testing.T, q *linkQueue) (number uint64, n int, due time.Duration) {
	t.Helper()
	frame, at, ok := q.next()
	if !ok {
		t.Fatal("the queue is empty")
	}
	number, n = binary.NativeEndian.Uint64(frame), len(frame)
	q.pop()
	return number, n, time.Duration(at)
}

func TestLinkDelaysEachElement(t *testing.T) {
	q := newLinkQueue(Link{Delay: 10 * time.Millisecond})
	for i, at := range []time.Duration{0, time.Microsecond, time.Second} {
		if !offer(t, q, at, uint64(i), 1500) {
			t.Fatalf("element %d was dropped", i)
		}
	}
	for i, want := range []time.Duration{10 * time.Millisecond, 10*time.Millisecond + time.Microsecond, 1010 * time.Millisecond} {
		if number, n, due := take(t, q); number != uint64(i) || n != 1500 || due != want {
			t.Errorf("got element %d of %d bytes, due at %s; want %d of 1500, due at %s", number, n, due, i, want)
		}
	}
}

func TestLinkSendsAtItsRate(t *testing.T) {
	q := newLinkQueue(Link{Delay: time.Millisecond, BitsPerSecond: 8e6, Queue: 1 << 20})
	for i := range 100 {
		offer(t, q, 0, uint64(i), 1000)
	}
	for i := range 100 {
		if _, _, due := take(t, q); due != time.Duration(i+2)*time.Millisecond {
			t.Fatalf("element %d is due at %s", i, due)
		}
	}
	// A bottleneck that was idle collects no credit.
	offer(t, q, time.Second, 0, 1000)
	if _, _, due := take(t, q); due != 1002*time.Millisecond {
		t.Errorf("after a pause an element is due at %s", due)
	}
}

func TestLinkDropsTheTailOfFullQueue(t *testing.T) {
	q := newLinkQueue(Link{BitsPerSecond: 8e6, Queue: 4000})
	var accepted []int
	for i := range 10 {
		if offer(t, q, 0, uint64(i), 1000) {
			accepted = append(accepted, i)
		}
	}
	if len(accepted) != 4 || accepted[3] != 3 {
		t.Errorf("accepted %v of 10 elements, want the first 4", accepted)
	}
	if !offer(t, q, time.Millisecond, 10, 1000) {
		t.Error("dropped an element after the bottleneck had sent one")
	}
	if offer(t, q, time.Millisecond, 11, 1000) {
		t.Error("accepted an element while the queue was full")
	}
}

func TestLinkKeepsOrderAndContent(t *testing.T) {
	q := newLinkQueue(Link{Delay: time.Millisecond})
	rng := rand.New(rand.NewPCG(1, 2))
	var sizes []int
	in, out, last := 0, 0, time.Duration(0)
	for step := range 200_000 {
		if rng.IntN(2) == 0 && q.reserve() != nil {
			sizes = append(sizes, 8+rng.IntN(maxFrame-8))
			offer(t, q, time.Duration(step), uint64(in), sizes[in])
			in++
		}
		if _, _, ok := q.next(); !ok || rng.IntN(2) == 0 {
			continue
		}
		number, n, due := take(t, q)
		if number != uint64(out) || n != sizes[out] || due < last {
			t.Fatalf("got element %d of %d bytes, due at %s; want %d of %d after %s", number, n, due, out, sizes[out], last)
		}
		out, last = out+1, due
	}
	if out < 10_000 || q.count != in-out {
		t.Errorf("%d elements in, %d out, %d left", in, out, q.count)
	}
}

func TestFullRingRefusesElementsUntilRead(t *testing.T) {
	q := newLinkQueue(Link{})
	in := uint64(0)
	for ; q.reserve() != nil; in++ {
		offer(t, q, 0, in, maxFrame)
	}
	if in < ringSpare/slotSize-1 {
		t.Errorf("the ring is full after %d elements", in)
	}
	for out := range in {
		if number, _, _ := take(t, q); number != out {
			t.Fatalf("got element %d, want %d", number, out)
		}
	}
	if q.reserve() == nil {
		t.Error("the ring is full although it is empty")
	}
}

func TestWireLengthCountsHeadersOfEachSegment(t *testing.T) {
	frame := func(gsoType byte, gsoSize, start, n int) []byte {
		b := make([]byte, vnetLen+n)
		b[vnetGSOType] = gsoType
		binary.NativeEndian.PutUint16(b[vnetGSOSize:], uint16(gsoSize))
		binary.NativeEndian.PutUint16(b[vnetCsumStart:], uint16(start))
		if vnetLen+start+tcpDataOffset < len(b) {
			b[vnetLen+start+tcpDataOffset] = 8 << 4 // 32 bytes of TCP header
		}
		return b
	}
	for name, c := range map[string]struct {
		frame []byte
		want  int
	}{
		"single packet":           {frame(0, 0, 0, 1514), 1514},
		"TCP train of 3 segments": {frame(1, 1448, 34, 14+20+32+2*1448+1), 3*(14+20+32) + 2*1448 + 1},
		"UDP train of 2 segments": {frame(gsoUDP, 1000, 34, 14+20+8+2000), 2*(14+20+8) + 2000},
		"train of one segment":    {frame(1, 1448, 34, 14+20+32+100), 14 + 20 + 32 + 100},
		"headers beyond the end":  {frame(1, 1448, 60000, 100), 100},
		"no virtio-net header":    {make([]byte, 3), 0},
	} {
		if got := wireLen(c.frame); got != c.want {
			t.Errorf("%s: got %d bytes, want %d", name, got, c.want)
		}
	}
}

func TestCableRejectsIncompleteLink(t *testing.T) {
	for _, l := range []Link{{Delay: -1}, {BitsPerSecond: -1}, {BitsPerSecond: 1e6}, {Queue: 1500}} {
		if _, err := new(Lab).Cable(new(Host), &Host{name: "b"}, CableConfig{Link: &l}); err == nil {
			t.Errorf("%+v: no error", l)
		}
	}
}

// newLink connects two hosts by a cable with a Link.
func newLink(t *testing.T, l Link) (c *Cable, a, b *Host) {
	t.Helper()
	lab := newLab(t)
	a, b = newHost(t, lab, "a"), newHost(t, lab, "b")
	c, err := lab.Cable(a, b, CableConfig{AddrsA: addrsA, AddrsB: addrsB, Link: &l})
	expect.NoError(t, err)
	return c, a, b
}

var pingTime = regexp.MustCompile(`time=([0-9.]+) ms`)

func TestPingOverLinkTakesBothDelays(t *testing.T) {
	if _, err := exec.LookPath("ping"); err != nil {
		t.Skip(err)
	}
	_, a, _ := newLink(t, Link{Delay: 30 * time.Millisecond})
	expect.EventuallyNoError(t, "a ping", func() error {
		out, err := a.Command(t.Context(), "ping", "-c", "1", "-W", "5", addrsB[0].Addr().String()).Output()
		if err != nil {
			return err
		}
		found := pingTime.FindSubmatch(out)
		if found == nil {
			t.Fatalf("ping printed %q", out)
		}
		if ms, err := strconv.ParseFloat(string(found[1]), 64); err != nil || ms < 60 {
			t.Errorf("the round trip took %s ms, %v; want at least 60", found[1], err)
		}
		return nil
	})
}

func TestFullLinkQueueMovesDropCounter(t *testing.T) {
	c, a, b := newLink(t, Link{BitsPerSecond: 1e6, Queue: 10_000})
	var in, out net.Conn
	to := net.UDPAddr{IP: addrsB[0].Addr().AsSlice(), Port: 9}
	expect.NoError(t, b.Do(func() (err error) { in, err = net.ListenUDP("udp", &to); return err }))
	defer in.Close()
	expect.NoError(t, a.Do(func() (err error) { out, err = net.DialUDP("udp", nil, &to); return err }))
	defer out.Close()
	message := bytes.Repeat([]byte("x"), 1400)
	expect.Eventually(t, "a drop", func() bool {
		for range 20 {
			_, _ = out.Write(message)
		}
		return c.Dropped() > 0
	})
	if n, err := in.Read(make([]byte, 1500)); err != nil || n != len(message) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}

func TestTrainsPassLinkWhole(t *testing.T) {
	c, a, b := newLink(t, Link{Delay: time.Millisecond})
	var longest int
	capture, err := b.Capture(CaptureConfig{Device: c.DeviceB, Handle: func(p Packet) { longest = max(longest, p.Len) }})
	expect.NoError(t, err)
	to := net.TCPAddr{IP: addrsB[0].Addr().AsSlice(), Port: 9}
	var in *net.TCPListener
	var out *net.TCPConn
	expect.NoError(t, b.Do(func() (err error) { in, err = net.ListenTCP("tcp", &to); return err }))
	defer in.Close()
	expect.NoError(t, a.Do(func() (err error) { out, err = net.DialTCP("tcp", nil, &to); return err }))
	defer out.Close()
	conn, err := in.Accept()
	expect.NoError(t, err)
	defer conn.Close()
	const size = 1 << 20
	go func() { _, _ = out.Write(make([]byte, size)) }()
	_, err = io.ReadFull(conn, make([]byte, size))
	expect.NoError(t, err)
	expect.NoError(t, capture.Stop())
	if longest < 10_000 {
		t.Errorf("of 1 MiB of TCP the largest train had %d bytes", longest)
	}
}
