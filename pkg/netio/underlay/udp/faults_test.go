// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// faultyKernel replaces sendmmsg. It returns the errors that verdict chooses, and records the accepted messages.
type faultyKernel struct {
	verdict func(payload []byte, segmented, source bool) unix.Errno
	atMost  int // messages per call, 0 for any number
	calls   int
	sent    [][]byte
	from    []int // the descriptor of each message
}

func (k *faultyKernel) send(fd int, msgs []message) (int, unix.Errno) {
	k.calls++
	for i := range msgs {
		if k.atMost > 0 && i == k.atMost {
			return i, 0
		}
		payload, segmented, source := dissect(&msgs[i].hdr)
		if errno := k.verdict(payload, segmented, source); errno != 0 {
			if i > 0 {
				return i, 0
			}
			return -1, errno
		}
		k.sent, k.from = append(k.sent, payload), append(k.from, fd)
	}
	return len(msgs), 0
}

// dissect reads a message as the kernel would.
func dissect(h *unix.Msghdr) (payload []byte, segmented, source bool) {
	payload = gather(h)
	for control := controlOf(h); ; {
		level, _, _, rest, ok := nextCmsg(control)
		if !ok {
			return payload, segmented, source
		}
		segmented = segmented || level == unix.SOL_UDP
		source = source || level == unix.SOL_IP || level == unix.SOL_IPV6
		control = rest
	}
}

func faultyLane(t *testing.T, k *faultyKernel) (*Port, *lane) {
	t.Helper()
	p := open(t, Config{})
	if !p.Features().GSO {
		t.Skip("needs UDP_SEGMENT (Linux 4.18)")
	}
	l := p.lanes[0]
	l.tx.sendmmsg, p.sendNow = k.send, k.send
	return p, l
}

func run(segments int, fill byte) underlay.Run {
	to := underlay.Endpoint{Dst: netip.MustParseAddrPort("127.0.0.1:9"), Src: netip.MustParseAddr("127.0.0.1")}
	return underlay.Run{To: &to, Parts: [][]byte{bytes.Repeat([]byte{fill}, segments*10)}, SegSize: 10, Segments: segments}
}

func lengths(payloads [][]byte) (n []int) {
	for _, p := range payloads {
		n = append(n, len(p))
	}
	return n
}

func TestOversizeRunIsSplitAndKeepsGSO(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EINVAL, unix.EMSGSIZE} {
		k := &faultyKernel{verdict: func(_ []byte, segmented, _ bool) unix.Errno {
			if segmented {
				return errno
			}
			return 0
		}}
		p, l := faultyLane(t, k)
		if l.Send([]underlay.Run{run(3, 'a')}) != 0 || len(k.sent) != 3 {
			t.Errorf("%v: sent %v", errno, lengths(k.sent))
		}
		if !p.Features().GSO {
			t.Errorf("%v revoked GSO", errno)
		}
	}
}

func TestLostSourceIsRetriedOnceWithoutIt(t *testing.T) {
	k := &faultyKernel{verdict: func(_ []byte, _, source bool) unix.Errno {
		if source {
			return unix.EINVAL
		}
		return 0
	}}
	p, l := faultyLane(t, k)
	if l.Send([]underlay.Run{run(3, 'a')}) != 0 || !slices.Equal(lengths(k.sent), []int{30}) {
		t.Errorf("sent %v, want one run of 30", lengths(k.sent))
	}
	if k.calls != 2 || !p.Features().GSO {
		t.Errorf("got %d calls, GSO %v; want 2 calls and GSO", k.calls, p.Features().GSO)
	}
}

// TestOversizeRunKeepsItsSource: some kernels report an oversize train by the error of a lost source address. Without the address its
// datagrams would come from another one, and could not leave at all from the socket of a send group.
func TestOversizeRunKeepsItsSource(t *testing.T) {
	for group := range 2 {
		k := &faultyKernel{verdict: func(_ []byte, segmented, source bool) unix.Errno {
			if segmented || !source {
				return unix.EINVAL
			}
			return 0
		}}
		p, l := faultyLane(t, k)
		if group > 0 {
			expect.NoError(t, p.OpenGroup(group))
		}
		r := run(3, 'a')
		r.Group = group
		for range 2 {
			k.sent = nil
			if failed := l.Send([]underlay.Run{r}); failed != 0 || len(k.sent) != 3 {
				t.Errorf("group %d: %d runs failed, sent %v, want 3 datagrams", group, failed, lengths(k.sent))
			}
		}
		if limit := p.paths.current().limit(r.To).train.bytes; limit != r.SegSize {
			t.Errorf("group %d: the limit of trains is %d, want %d", group, limit, r.SegSize)
		}
	}
}

// TestDatagramsWithoutLostSourceAreCounted sends a run singly, since the path takes no trains, and without its source address, until
// the send buffer is full: the engine must not send the same nonce counters again.
func TestDatagramsWithoutLostSourceAreCounted(t *testing.T) {
	left, full := 3, false
	k := &faultyKernel{verdict: func(_ []byte, train, source bool) unix.Errno {
		switch {
		case train:
			return unix.EIO
		case source:
			return unix.EINVAL
		case left == 0:
			full = true
			return unix.EAGAIN
		}
		left--
		return 0
	}}
	_, l := faultyLane(t, k)
	runs := []underlay.Run{run(5, 'a')}
	if failed := l.Send(runs); failed != 1 || !full || !errors.Is(runs[0].Err, underlay.ErrSendBufferFull) || runs[0].Sent != 3 {
		t.Errorf("got %d failed, error %v, %d datagrams sent, want 1, %v, 3", failed, runs[0].Err, runs[0].Sent, underlay.ErrSendBufferFull)
	}
}

func TestErrorsStayWithTheirRun(t *testing.T) {
	for _, c := range []struct {
		errno unix.Errno
		want  error
	}{{unix.ENOBUFS, unix.ENOBUFS}, {unix.EPERM, unix.EPERM}, {unix.EMSGSIZE, underlay.ErrTooBig}, {unix.EINVAL, unix.EINVAL}} {
		k := &faultyKernel{verdict: func(payload []byte, _, _ bool) unix.Errno {
			if payload[0] == 'x' {
				return c.errno
			}
			return 0
		}}
		_, l := faultyLane(t, k)
		runs := []underlay.Run{run(2, 'x'), run(1, 'a'), run(1, 'x'), run(2, 'b'), run(4, 'x')}
		if failed := l.Send(runs); failed != 3 {
			t.Errorf("%v: got %d failed, want 3", c.errno, failed)
		}
		for i := range runs {
			if i%2 == 0 && !errors.Is(runs[i].Err, c.want) || i%2 == 1 && runs[i].Err != nil {
				t.Errorf("%v: run %d: %v", c.errno, i, runs[i].Err)
			}
		}
		if got, want := lengths(k.sent), []int{10, 20}; !slices.Equal(got, want) {
			t.Errorf("%v: sent %v, want %v", c.errno, got, want)
		}
	}
}

func TestPartialSendsContinueInOrder(t *testing.T) {
	interrupted := false
	k := &faultyKernel{atMost: 3, verdict: func([]byte, bool, bool) unix.Errno {
		if interrupted = !interrupted; interrupted {
			return unix.EINTR
		}
		return 0
	}}
	_, l := faultyLane(t, k)
	var runs []underlay.Run
	for i := range 300 { // more than one sendBatch
		runs = append(runs, run(1+i%3, byte(i)))
	}
	if failed := l.Send(runs); failed != 0 || len(k.sent) != len(runs) {
		t.Fatalf("%d failed, %d of %d sent", failed, len(k.sent), len(runs))
	}
	for i := range runs {
		if !bytes.Equal(k.sent[i], runs[i].Parts[0]) {
			t.Fatalf("message %d is not run %d", i, i)
		}
	}
}

func TestRefusedRunsAreSentWithoutAllocating(t *testing.T) {
	_, l := faultyLane(t, &faultyKernel{})
	l.tx.sendmmsg = func(_ int, msgs []message) (int, unix.Errno) {
		if msgs[0].hdr.Controllen > 0 {
			return -1, unix.EINVAL
		}
		return 1, unix.ENOBUFS
	}
	runs := []underlay.Run{run(45, 'a'), run(1, 'b')}
	if allocs := testing.AllocsPerRun(20, func() { l.Send(runs) }); allocs != 0 {
		t.Errorf("got %v allocations, want 0", allocs)
	}
}
