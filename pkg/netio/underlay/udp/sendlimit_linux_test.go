// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"testing"
	"time"
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
		l.room(7)
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
	l.room(7)
}
