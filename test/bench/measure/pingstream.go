// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	pingInterval = time.Millisecond
	// maxCatchUp limits how far a delayed sender catches up. It skips earlier pings.
	maxCatchUp = 50 * time.Millisecond
	pingPort   = 9077
	// pingNice is the nice value of the ping threads, so that scheduling delays are not measured as an outage.
	pingNice = -15
	// replyTimeout is the time allowed for the last replies. A third of it is the interval at which threads check for the end.
	replyTimeout = 300 * time.Millisecond
)

// pingStream sends a UDP ping each millisecond from A to B through the tunnel, regardless of errors.
type pingStream struct {
	ping, echo int // sockets, at A and at B
	to         unix.Sockaddr
	begin      time.Time
	sent       []time.Duration // since begin
	back       []time.Duration // the same, 0 for none; longer than sent

	stopping, drained atomic.Bool
	sender, receivers sync.WaitGroup
}

// startPingStream pings for at most d.
func (l *Lab) startPingStream(d time.Duration) (*pingStream, error) {
	s := &pingStream{
		ping: -1, echo: -1, to: &unix.SockaddrInet4{Port: pingPort, Addr: l.Addrs(l.B)[0].As4()},
		back: make([]time.Duration, d/pingInterval+1),
	}
	err := errors.Join(
		l.A.Host.Do(func() (err error) { s.ping, err = pingSocket(0); return err }),
		l.B.Host.Do(func() (err error) { s.echo, err = pingSocket(pingPort); return err }),
	)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("opening sockets for pings: %w", err)
	}
	s.begin = time.Now()
	s.receivers.Go(s.answer)
	s.receivers.Go(s.receive)
	s.sender.Go(s.send)
	return s, nil
}

func pingSocket(port uint16) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	wait := unix.NsecToTimeval(int64(replyTimeout / 3))
	err = errors.Join(
		unix.Bind(fd, &unix.SockaddrInet4{Port: int(port), Addr: netip.IPv4Unspecified().As4()}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
	)
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// finish stops the pings and returns the outage that they measured.
func (s *pingStream) finish() outage {
	s.stopping.Store(true)
	s.sender.Wait()
	time.Sleep(replyTimeout)
	s.drained.Store(true)
	s.receivers.Wait()
	s.close()
	return findOutage(s.sent, s.back[:len(s.sent)])
}

func (s *pingStream) close() {
	for _, fd := range []int{s.ping, s.echo} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// raisePriority gives the goroutine a thread before others. The thread ends with it.
func raisePriority() {
	runtime.LockOSThread()
	_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), pingNice)
}

func (s *pingStream) send() {
	raisePriority()
	var b [8]byte
	due := time.Duration(0)
	for !s.stopping.Load() && len(s.sent) < len(s.back) {
		now := time.Since(s.begin)
		if wait := due - now; wait > 0 {
			t := unix.NsecToTimespec(int64(wait))
			_ = unix.Nanosleep(&t, nil)
			continue
		}
		due = max(due+pingInterval, now-maxCatchUp)
		binary.BigEndian.PutUint64(b[:], uint64(len(s.sent)))
		s.sent = append(s.sent, now)
		// Without an interface there is no route: that ping is lost.
		_ = unix.Sendto(s.ping, b[:], 0, s.to)
	}
}

func (s *pingStream) receive() {
	raisePriority()
	var b [8]byte
	for !s.drained.Load() {
		n, _, err := unix.Recvfrom(s.ping, b[:], 0)
		seq := binary.BigEndian.Uint64(b[:])
		if err == nil && n == len(b) && seq < uint64(len(s.back)) && s.back[seq] == 0 {
			s.back[seq] = time.Since(s.begin)
		}
	}
}

func (s *pingStream) answer() {
	raisePriority()
	var b [8]byte
	for !s.drained.Load() {
		if n, from, err := unix.Recvfrom(s.echo, b[:], 0); err == nil {
			_ = unix.Sendto(s.echo, b[:n], 0, from)
		}
	}
}

// outage is the outcome of steady pings.
type outage struct {
	sent, lost int
	// hole is the longest time between the sending of two pings that were answered, with none in between that was; 0 if
	// none was lost. A hole at the beginning or at the end counts too.
	hole time.Duration
	// late is the longest that an answer took.
	late time.Duration
}

// findOutage takes the times at which pings were sent and came back; 0 for pings that did not come
// back.
func findOutage(sent, back []time.Duration) outage {
	o := outage{sent: len(sent)}
	last := -1 // answered
	for i := range sent {
		if back[i] == 0 {
			o.lost++
			o.hole = max(o.hole, sent[i]-sent[max(last, 0)])
			continue
		}
		if i > last+1 {
			o.hole = max(o.hole, sent[i]-sent[max(last, 0)])
		}
		last = i
		o.late = max(o.late, back[i]-sent[i])
	}
	return o
}
