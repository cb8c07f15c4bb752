// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// device empties a send buffer at a rate, in bytes per second, and reports refusals and room to the limits.
func device(l *sendLimits, now *time.Time, rate float64, rounds int) (limit int) {
	limit = firstSendBuffer
	if s := l.sockets[7]; s != nil {
		limit = s.bytes
	}
	l.set = func(_, bytes int) { limit = bytes }
	for range rounds {
		l.full(7)
		*now = now.Add(time.Duration(float64(limit) / 2 / rate * float64(time.Second)))
		l.room(7, true)
	}
	return limit
}

func TestSendBufferFollowsRateOfDevice(t *testing.T) {
	now := time.Unix(1, 0)
	l := newSendLimits(1 << 20)
	l.now = func() time.Time { return now }
	for _, c := range []struct {
		name string
		rate float64
		want int
	}{
		{"10 Mbit/s", 10e6 / 8, 25000}, {"300 Mbit/s", 300e6 / 8, 750000}, {"10 Gbit/s", 10e9 / 8, 1 << 20}, {"1 kbit/s", 1e3 / 8, minSendBuffer},
	} {
		if got := device(&l, &now, c.rate, 20); got < c.want*99/100 || got > c.want*101/100 {
			t.Errorf("at %s the send buffer has %d bytes, want %d", c.name, got, c.want)
		}
	}
}

func TestRoomWithoutRefusalChangesNothing(t *testing.T) {
	l := newSendLimits(1 << 20)
	l.set = func(int, int) { t.Error("a send buffer was resized") }
	l.room(7, true)
}

func TestSendBufferKeepsRoomForFragments(t *testing.T) {
	now := time.Unix(1, 0)
	l := newSendLimits(1 << 20)
	l.now = func() time.Time { return now }
	device(&l, &now, 1e6/8, 20)
	const size = 32 << 10
	if l.set = func(int, int) {}; !l.fit(7, size) || l.fit(7, size) {
		t.Error("a small send buffer must be enlarged once for a large datagram")
	}
	if got := device(&l, &now, 1e6/8, 20); got != fragmentCharge*size {
		t.Errorf("behind a slow device the send buffer shrank to %d bytes, want %d", got, fragmentCharge*size)
	}
	now = now.Add(pathLifetime)
	if got := device(&l, &now, 1e6/8, 20); got != minSendBuffer {
		t.Errorf("long after the last large datagram the send buffer has %d bytes, want %d", got, minSendBuffer)
	}
}

// TestSendBufferGrowsBehindFastDevice fills a send buffer, which then has room at once by the clock of its limits.
func TestSendBufferGrowsBehindFastDevice(t *testing.T) {
	remove := slowDevice(t)
	p := open(t, Config{})
	now, sizes := time.Unix(1, 0), map[int]int{}
	p.limits.now = func() time.Time { return now }
	p.limits.set = func(fd, bytes int) { sizes[fd] = bytes }
	to, lane := behindSlowDevice(false), p.Lane(0)
	runs := []underlay.Run{small(&to, 0, 0)}
	for lane.Send(runs) == 0 {
	}
	fd := lane.SendFD(&runs[0])
	remove()
	expect.Eventually(t, "the send buffer has room", func() bool { return writable(t, fd) })
	if failed := lane.Send(runs); failed != 0 || len(sizes) != 1 || sizes[fd] != 2*firstSendBuffer {
		t.Errorf("sending failed with %v; the sizes of send buffers are %v, want twice the first, %d", runs[0].Err, sizes, firstSendBuffer)
	}
}

// TestLittleRoomDoesNotEnlargeSendBuffer makes a full socket accept one datagram after the other, as if the device had sent one of many.
func TestLittleRoomDoesNotEnlargeSendBuffer(t *testing.T) {
	slowDevice(t)
	p := open(t, Config{})
	now, size := time.Unix(1, 0), firstSendBuffer
	p.limits.now = func() time.Time { return now }
	p.limits.set = func(_, bytes int) { size = bytes }
	to, lane := behindSlowDevice(false), p.lanes[0]
	runs := []underlay.Run{small(&to, 0, 0)}
	for lane.Send(runs) == 0 {
	}
	lane.tx.sendmmsg = func(_ int, msgs []message) (int, unix.Errno) { return len(msgs), 0 }
	for range 3 {
		lane.Send(runs)
		if runs[0].Err != nil || size != firstSendBuffer {
			t.Errorf("the send buffer has %d bytes, want %d; sending failed with %v", size, firstSendBuffer, runs[0].Err)
		}
		now = now.Add(sendDelay / 3)
	}
	now = now.Add(sendDelay)
	if lane.Send(runs); size != firstSendBuffer/2 {
		t.Errorf("after a long time the send buffer has %d bytes, want %d", size, firstSendBuffer/2)
	}
}
