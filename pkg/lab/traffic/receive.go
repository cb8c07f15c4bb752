// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	recvBuffers   = 16
	recvBufferLen = 65535
	socketBuffer  = 8 << 20
)

// counters counts what one receiver has received. Only the receiver stores; other goroutines load.
type counters struct {
	bytes, packets, reordered, duplicated, corrupt atomic.Uint64
	first, last                                    atomic.Int64  // unix nanoseconds
	warmup                                         atomic.Uint64 // bytes received before first
}

func (c *counters) counts() Counts {
	return Counts{
		Bytes: c.bytes.Load(), Packets: c.packets.Load(), Reordered: c.reordered.Load(),
		Duplicated: c.duplicated.Load(), Corrupt: c.corrupt.Load(),
	}
}

func (c *counters) touch(now int64) {
	if c.first.Load() == 0 {
		c.first.Store(now)
	}
	c.last.Store(now)
}

// warmUp moves the beginning of the measurement to now, if all that was received until now came within the warm-up.
func (c *counters) warmUp(now int64, warmup time.Duration, begin int64) {
	if now-begin <= int64(warmup) {
		c.first.Store(now)
		c.warmup.Store(c.bytes.Load())
	}
}

func (c *counters) stream() Stream {
	return Stream{
		Counts: c.counts(), WarmupBytes: c.warmup.Load(), Seconds: time.Duration(c.last.Load() - c.first.Load()).Seconds(),
	}
}

// datagramReceiver receives one UDP stream.
type datagramReceiver struct {
	head     header // key and stream
	body     []byte
	counters *counters
	seq      sequence
	bytes    uint64
}

// prepareReceiver requests a large receive buffer and UDP GRO. Both are optional.
func prepareReceiver(conn *net.UDPConn) {
	_ = setsockopt(conn, unix.SOL_SOCKET, socketBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	_ = setsockopt(conn, unix.SOL_UDP, 1, unix.UDP_GRO)
}

// receive runs until the connection is closed.
func (d *datagramReceiver) receive(conn *net.UDPConn) error {
	b, err := newRecvBatch(conn, recvBuffers, recvBufferLen)
	if err != nil {
		return err
	}
	for {
		n, err := b.recv()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receiving datagrams: %w", err)
		}
		for i := range n {
			d.countTrain(b.received(i))
		}
		d.publish()
	}
}

func (d *datagramReceiver) countTrain(train []byte, segSize int) {
	for len(train) > 0 {
		n := min(segSize, len(train))
		d.count(train[:n])
		train = train[n:]
	}
}

// count verifies and counts one datagram. It ignores datagrams of an earlier run that used the same port.
func (d *datagramReceiver) count(p []byte) {
	h, err := parseHeader(p)
	if err == nil && h.key != d.head.key {
		return
	}
	if err != nil || h.stream != d.head.stream || int(h.size) != len(p) || !bytes.HasPrefix(d.body, p[headerLen:]) {
		d.counters.corrupt.Add(1)
		return
	}
	before := d.seq.unique
	d.seq.observe(h.seq)
	if d.seq.unique != before {
		d.bytes += uint64(len(p))
	}
}

func (d *datagramReceiver) publish() {
	d.counters.touch(time.Now().UnixNano())
	d.counters.bytes.Store(d.bytes)
	d.counters.packets.Store(d.seq.unique)
	d.counters.reordered.Store(d.seq.reordered)
	d.counters.duplicated.Store(d.seq.duplicated)
}

// echoDatagrams returns the datagrams of a run to their sender until the connection is closed.
func echoDatagrams(conn *net.UDPConn, key uint64, t *counters) error {
	buf := make([]byte, recvBufferLen)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("receiving pings: %w", err)
		}
		if h, err := parseHeader(buf[:n]); err != nil || h.key != key {
			continue
		}
		t.packets.Add(1)
		t.bytes.Add(uint64(n))
		// If this fails, the client counts the ping as lost.
		_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
	}
}

// receiveStream reads a TCP stream to its end. It verifies up to the first error, since the position is unknown after that.
func receiveStream(r io.Reader, v *verifier, t *counters, warmup time.Duration) error {
	buf := make([]byte, 4*chunkLen)
	begin := time.Now().UnixNano()
	for {
		n, err := r.Read(buf)
		if n > 0 {
			now := time.Now().UnixNano()
			t.touch(now)
			if t.corrupt.Load() == 0 && !v.check(buf[:n]) {
				t.corrupt.Store(1)
			}
			t.bytes.Add(uint64(n))
			if warmup > 0 {
				t.warmUp(now, warmup, begin)
			}
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("receiving stream %d: %w", v.head.stream, err)
		}
	}
}
