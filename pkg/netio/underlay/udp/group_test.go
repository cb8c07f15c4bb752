// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// small returns a run of one datagram.
func small(to *underlay.Endpoint, source, group int) underlay.Run {
	return underlay.Run{To: to, Parts: [][]byte{make([]byte, 1400)}, Segments: 1, Source: source, Group: group}
}

func writable(t *testing.T, fd int) bool {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds, 0)
	expect.NoError(t, err)
	return n > 0
}

// TestFullSendBufferRefusesOnlyItsRuns fills the send buffer of the listen port in group 0.
func TestFullSendBufferRefusesOnlyItsRuns(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		t.Run(fmt.Sprint("IPv6 ", v6), func(t *testing.T) { expectOnlyFullBufferRefuses(t, v6) })
	}
}

func expectOnlyFullBufferRefuses(t *testing.T, v6 bool) {
	t.Helper()
	remove := slowDevice(t)
	p := open(t, Config{SendBuffer: 20000})
	to := behindSlowDevice(v6)
	before := openSource(t, p)
	expect.NoError(t, p.OpenGroup(1))
	after := openSource(t, p)
	lane := p.Lane(0)
	full := []underlay.Run{small(&to, 0, 0)}
	for lane.Send(full) == 0 {
	}
	runs := []underlay.Run{
		small(&to, 0, 0), small(&to, before, 0), small(&to, 0, 1), small(&to, before, 1), small(&to, after, 1), small(&to, 0, 0),
	}
	if failed := lane.Send(runs); failed != 2 || !errors.Is(runs[0].Err, underlay.ErrSendBufferFull) || !errors.Is(runs[5].Err, underlay.ErrSendBufferFull) {
		for i := range runs {
			t.Logf("run %d: %v", i, runs[i].Err)
		}
		t.Errorf("%d runs failed, want the first and the last", failed)
	}
	fds := map[int]bool{}
	for i := range runs[:5] {
		fd := lane.SendFD(&runs[i])
		fds[fd] = true
		if got := writable(t, fd); got != (i > 0) {
			t.Errorf("run %d: descriptor is writable: %v", i, got)
		}
	}
	if len(fds) != 5 {
		t.Errorf("5 send buffers have %d descriptors", len(fds))
	}
	remove()
	expect.Eventually(t, "the send buffer has room", func() bool { return writable(t, lane.SendFD(&full[0])) })
	if failed := lane.Send(full); failed != 0 {
		t.Errorf("sending with room in the buffer: %v", full[0].Err)
	}
}

// TestSourceOpenedAfterGroupHasItsSendBuffer fills the source's own.
func TestSourceOpenedAfterGroupHasItsSendBuffer(t *testing.T) {
	slowDevice(t)
	p := open(t, Config{SendBuffer: 20000})
	expect.NoError(t, p.OpenGroup(1))
	to, source, lane := behindSlowDevice(false), openSource(t, p), p.Lane(0)
	full := []underlay.Run{small(&to, source, 0)}
	for lane.Send(full) == 0 {
	}
	runs := []underlay.Run{small(&to, source, 1)}
	if lane.Send(runs) != 0 || lane.SendFD(&runs[0]) == lane.SendFD(&full[0]) {
		t.Errorf("sending in group 1: %v", runs[0].Err)
	}
}

// TestRefusalWithoutSourceAddressWaitsForItsSocket sends from an address that the host has lost. Its source's own socket, which takes the
// place of the group's, is full.
func TestRefusalWithoutSourceAddressWaitsForItsSocket(t *testing.T) {
	slowDevice(t)
	p := open(t, Config{SendBuffer: 20000})
	expect.NoError(t, p.OpenGroup(1))
	to := behindSlowDevice(false)
	lost := to
	lost.Src = netip.MustParseAddr("192.0.2.9")
	lane := p.Lane(0)
	full := []underlay.Run{small(&to, 0, 0)}
	for lane.Send(full) == 0 {
	}
	runs := []underlay.Run{small(&to, 0, 1), small(&lost, 0, 1), small(&to, 0, 1)}
	if failed := lane.Send(runs); failed != 2 || !errors.Is(runs[1].Err, underlay.ErrSendBufferFull) || !errors.Is(runs[2].Err, underlay.ErrSendBufferFull) {
		t.Errorf("%d runs failed, with %v and %v; want the second and third, for a full send buffer", failed, runs[1].Err, runs[2].Err)
	}
	for i := range runs[1:] {
		if writable(t, lane.SendFD(&runs[1+i])) {
			t.Errorf("run %d: the descriptor to wait for is writable", 1+i)
		}
	}
	if lane.Send(runs[:1]) != 0 || !writable(t, lane.SendFD(&runs[0])) {
		t.Errorf("in a later call the group's own send buffer has no room: %v", runs[0].Err)
	}
}

// TestGroupsLookAlikeOnTheWire sends in every group from every source: addresses and ports are those of group 0, and the port receives
// on its lanes what it received before.
func TestGroupsLookAlikeOnTheWire(t *testing.T) {
	enterNamespace(t)
	from, at := open(t, Config{Lanes: 2}), open(t, Config{})
	source := openSource(t, from)
	for group := 1; group < underlay.MaxGroups; group++ {
		expect.NoError(t, from.OpenGroup(group))
	}
	for _, v6 := range []bool{false, true} {
		to := loopback(at, v6)
		known := to
		known.Src = to.Dst.Addr()
		for group := range underlay.MaxGroups {
			for _, run := range []underlay.Run{small(&to, 0, group), small(&known, 0, group), small(&known, source, group)} {
				t.Run(fmt.Sprintf("IPv6 %v, group %d, source %d, address %v", v6, group, run.Source, run.To.Src), func(t *testing.T) {
					expectFrom(t, from, at, run)
				})
			}
		}
	}
	back := loopback(from, false)
	runs := []underlay.Run{small(&back, 0, 0)}
	if failed := at.Lane(0).Send(runs); failed > 0 {
		t.Fatal(runs[0].Err)
	}
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	expect.Eventually(t, "a lane receives what is sent to the port", func() bool {
		return from.Lane(0).TryRecv(rx)+from.Lane(1).TryRecv(rx) > 0
	})
}

// expectFrom sends a run and checks its source address and port at the receiver.
func expectFrom(t *testing.T, from, at *Port, run underlay.Run) {
	t.Helper()
	runs := []underlay.Run{run}
	sends := 0
	from.lanes[1].tx.sendmmsg = func(fd int, msgs []message) (int, unix.Errno) {
		sends++
		return sendmmsg(fd, msgs)
	}
	if failed := from.Lane(1).Send(runs); failed > 0 || sends != 1 {
		t.Fatalf("sent with %d system calls, want 1: %v", sends, runs[0].Err)
	}
	rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
	if _, err := at.Lane(0).Recv(rx); err != nil {
		t.Fatal(err)
	}
	want := netip.AddrPortFrom(run.To.Dst.Addr(), from.Source(run.Source))
	if rx[0].From.Dst != want {
		t.Errorf("the datagram came from %v, want %v", rx[0].From.Dst, want)
	}
}

// TestRefusedRunCountsWhatHasLeft sends a run datagram by datagram, of which the send buffer takes two.
func TestRefusedRunCountsWhatHasLeft(t *testing.T) {
	left := 2
	k := &faultyKernel{atMost: 2, verdict: func([]byte, bool, bool) unix.Errno {
		if left == 0 {
			return unix.EAGAIN
		}
		left--
		return 0
	}}
	p, l := faultyLane(t, k)
	p.gso = false
	runs := []underlay.Run{run(5, 'a'), run(1, 'b')}
	if failed := l.Send(runs); failed != 2 || runs[0].Sent != 2 || runs[1].Sent != 0 || len(k.sent) != 2 {
		t.Errorf("%d runs failed, of which %d and %d datagrams left; the kernel has %d, want 2, 2, 0, 2", failed, runs[0].Sent, runs[1].Sent, len(k.sent))
	}
	for i := range runs {
		if !errors.Is(runs[i].Err, underlay.ErrSendBufferFull) {
			t.Errorf("run %d failed with %v", i, runs[i].Err)
		}
	}
}

// TestOpenGroupRejectsAnotherNamespace: its socket would send there.
func TestOpenGroupRejectsAnotherNamespace(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{})
	if _, err := unix.GetsockoptUint64(p.lanes[0].fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil {
		t.Skipf("needs SO_NETNS_COOKIE (Linux 5.14): %v", err)
	}
	requireNamespace(t)
	if err := p.OpenGroup(1); !errors.Is(err, errOtherNamespace) {
		t.Errorf("got error %v, want %v", err, errOtherNamespace)
	}
}

func TestOpenGroupRejectsNumbersOutsideItsRange(t *testing.T) {
	p := open(t, Config{})
	for _, group := range []int{-1, 0, underlay.MaxGroups} {
		if err := p.OpenGroup(group); !errors.Is(err, unix.EINVAL) {
			t.Errorf("group %d: %v", group, err)
		}
	}
}
