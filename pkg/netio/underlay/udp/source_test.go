// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
)

// openSource opens one more source, on a free port.
func openSource(t testing.TB, p *Port) int {
	t.Helper()
	next, port := p.sources.Len(), uint16(61000)
	for {
		source, err := p.OpenSource(port)
		if err == nil && source == next {
			return source
		}
		if err != nil && !errors.Is(err, unix.EADDRINUSE) {
			t.Fatal(err)
		}
		port++
	}
}

func TestSourcePortHeldByAnotherIsRefused(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{Lanes: 2})
	for _, network := range []string{"udp4", "udp6"} {
		c, err := net.ListenUDP(network, &net.UDPAddr{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		before := openFiles(t)
		if _, err := p.OpenSource(uint16(c.LocalAddr().(*net.UDPAddr).Port)); !errors.Is(err, unix.EADDRINUSE) {
			t.Errorf("%s: got %v, want EADDRINUSE", network, err)
		}
		if after := openFiles(t); !slices.Equal(before, after) {
			t.Errorf("%s: a failed OpenSource leaks descriptors: %v, then %v", network, before, after)
		}
	}
	other := open(t, Config{Lanes: 2})
	if _, err := p.OpenSource(other.LocalPort()); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another tunnel's port: got %v, want EADDRINUSE", err)
	}
	source := openSource(t, p)
	if c, err := Open(Config{Port: p.Source(source), Lanes: 2}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a port that is a source could be opened: got %v, error %v, want %v", c, err, unix.EADDRINUSE)
	}
}

func TestSourcesHaveTheOptionsOfLanes(t *testing.T) {
	requireNamespace(t)
	for _, noIPv6 := range []bool{false, true} {
		p := open(t, Config{SendBuffer: 300_000, ReceiveBuffer: 300_000, NoIPv6: noIPv6})
		fd := p.sources.Handle(openSource(t, p))
		for _, o := range []struct{ level, option int }{
			{unix.SOL_SOCKET, unix.SO_SNDBUF},
			{unix.SOL_SOCKET, unix.SO_DOMAIN},
			{unix.SOL_IP, unix.IP_MTU_DISCOVER},
		} {
			lane, _ := unix.GetsockoptInt(p.lanes[0].fd, o.level, o.option)
			if got, err := unix.GetsockoptInt(fd, o.level, o.option); got != lane || err != nil {
				t.Errorf("option %d of level %d is %d, %v; of a lane %d", o.option, o.level, got, err, lane)
			}
		}
		if size, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); size != 2*secondaryReceiveBuffer || err != nil { // the kernel doubles it
			t.Errorf("the receive buffer of a source has %d bytes, %v", size, err)
		}
	}
}

// bySources returns runs that leave from the given sources.
func bySources(segments int, sources ...int) []underlay.Run {
	var runs []underlay.Run
	for i, source := range sources {
		r := run(segments, byte('a'+i))
		r.Source = source
		runs = append(runs, r)
	}
	return runs
}

func TestAdjacentRunsOfOneSourceShareSystemCall(t *testing.T) {
	k := &faultyKernel{verdict: func([]byte, bool, bool) unix.Errno { return 0 }}
	p, l := faultyLane(t, k)
	first, second := openSource(t, p), openSource(t, p)
	if failed := l.Send(bySources(2, 0, 0, first, first, first, second, 0)); failed != 0 {
		t.Fatalf("%d failed", failed)
	}
	fd0, fd1, fd2 := l.fd, p.sources.Handle(first), p.sources.Handle(second)
	if want := []int{fd0, fd0, fd1, fd1, fd1, fd2, fd0}; !slices.Equal(k.from, want) || k.calls != 4 {
		t.Errorf("got %d calls on sockets %v, want 4 on %v", k.calls, k.from, want)
	}
	k.calls, k.from = 0, nil
	if l.Send(bySources(1, second)); !slices.Equal(k.from, []int{fd2}) || k.calls != 1 {
		t.Errorf("got %d calls on sockets %v, want one on %d", k.calls, k.from, fd2)
	}
}

// TestRefusedRunsStayOnTheirSource: datagrams that are sent again, singly or without a local address, keep their run's
// port.
func TestRefusedRunsStayOnTheirSource(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EIO, unix.EINVAL} {
		k := &faultyKernel{verdict: func(_ []byte, segmented, source bool) unix.Errno {
			if segmented || source && errno == unix.EINVAL {
				return errno
			}
			return 0
		}}
		p, l := faultyLane(t, k)
		first, second := openSource(t, p), openSource(t, p)
		runs := bySources(2, 0, first, second)
		l.Send(runs)
		fd0, fd1, fd2 := l.fd, p.sources.Handle(first), p.sources.Handle(second)
		if want := []int{fd0, fd0, fd1, fd1, fd2, fd2}; !slices.Equal(k.from, want) {
			t.Errorf("%v: sent on sockets %v, want %v", errno, k.from, want)
		}
		if f := p.Features(); !f.GSO || (f.DestinationsWithoutGSO > 0) != (errno == unix.EIO) {
			t.Errorf("%v: features %+v", errno, f)
		}
	}
}

func TestErrorsOfASourceStayWithTheirRun(t *testing.T) {
	k := &faultyKernel{}
	p, l := faultyLane(t, k)
	first := openSource(t, p)
	k.verdict = func(payload []byte, _, _ bool) unix.Errno {
		if payload[0] == 'b' {
			return unix.EPERM
		}
		return 0
	}
	runs := bySources(2, first, first, 0)
	if failed := l.Send(runs); failed != 1 || !errors.Is(runs[1].Err, unix.EPERM) || runs[0].Err != nil || runs[2].Err != nil {
		t.Errorf("%d failed: got %v, %v, %v, want nil, %v, nil", failed, runs[0].Err, runs[1].Err, runs[2].Err, unix.EPERM)
	}
}

// TestSourcesLeaveDescriptorsForOthers: a process without free descriptors cannot be controlled any more.
func TestSourcesLeaveDescriptorsForOthers(t *testing.T) {
	requireNamespace(t)
	p := open(t, Config{})
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: uint64(p.lanes[0].fd) + descriptorReserve + 20, Max: before.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &before) }()
	opened := 0
	for port := uint16(61000); port < 61100; port++ {
		_, err := p.OpenSource(port)
		if err == nil {
			opened++
			continue
		}
		if !errors.Is(err, unix.EMFILE) {
			t.Fatal(err)
		}
		break
	}
	if opened == 0 || opened > 20 {
		t.Errorf("%d sources were opened, want some and not more than 20", opened)
	}
	f, err := unix.Eventfd(0, 0)
	if err != nil {
		t.Fatalf("nothing is left for others: %v", err)
	}
	_ = unix.Close(f)
}
