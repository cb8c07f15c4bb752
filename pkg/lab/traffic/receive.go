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

// tally is what one receiver has seen. The receiver stores, others load.
type tally struct {
	bytes, packets, reordered, duplicated, corrupt atomic.Uint64
	first, last                                    atomic.Int64 // unix nanoseconds
}

func (t *tally) counts() Counts {
	return Counts{
		Bytes: t.bytes.Load(), Packets: t.packets.Load(), Reordered: t.reordered.Load(),
		Duplicated: t.duplicated.Load(), Corrupt: t.corrupt.Load(),
	}
}

func (t *tally) touch(now int64) {
	if t.first.Load() == 0 {
		t.first.Store(now)
	}
	t.last.Store(now)
}

func (t *tally) stream() Stream {
	return Stream{Counts: t.counts(), Seconds: time.Duration(t.last.Load() - t.first.Load()).Seconds()}
}

// datagrams receives one UDP stream.
type datagrams struct {
	head  header // key and stream
	body  []byte
	tally *tally
	seq   sequence
	bytes uint64
}

// prepareReceiver asks for a large buffer and for trains; a kernel that refuses gets by without.
func prepareReceiver(conn *net.UDPConn) {
	_ = setsockopt(conn, unix.SOL_SOCKET, socketBuffer, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF)
	_ = setsockopt(conn, unix.SOL_UDP, 1, unix.UDP_GRO)
}

// receive runs until the connection is closed.
func (d *datagrams) receive(conn *net.UDPConn) error {
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
			d.takeTrain(b.received(i))
		}
		d.publish()
	}
}

func (d *datagrams) takeTrain(train []byte, segSize int) {
	for len(train) > 0 {
		n := min(segSize, len(train))
		d.take(train[:n])
		train = train[n:]
	}
}

// take judges one datagram. One of another run, sent to a port that was used before, is none of ours.
func (d *datagrams) take(p []byte) {
	h, err := parseHeader(p)
	if err == nil && h.key != d.head.key {
		return
	}
	if err != nil || h.stream != d.head.stream || int(h.size) != len(p) || !bytes.HasPrefix(d.body, p[headerLen:]) {
		d.tally.corrupt.Add(1)
		return
	}
	before := d.seq.unique
	d.seq.observe(h.seq)
	if d.seq.unique != before {
		d.bytes += uint64(len(p))
	}
}

func (d *datagrams) publish() {
	d.tally.touch(time.Now().UnixNano())
	d.tally.bytes.Store(d.bytes)
	d.tally.packets.Store(d.seq.unique)
	d.tally.reordered.Store(d.seq.reordered)
	d.tally.duplicated.Store(d.seq.duplicated)
}

// echo returns the datagrams of a run to their sender until the connection is closed.
func echo(conn *net.UDPConn, key uint64, t *tally) error {
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
		// A pong that does not go out is a ping lost: the client counts it.
		_, _ = conn.WriteToUDPAddrPort(buf[:n], from)
	}
}

// receiveStream reads a TCP stream to its end. It verifies up to the first fault: nothing after that can be right.
func receiveStream(r io.Reader, v *verifier, t *tally) error {
	buf := make([]byte, 4*chunkLen)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			t.touch(time.Now().UnixNano())
			if t.corrupt.Load() == 0 && !v.check(buf[:n]) {
				t.corrupt.Store(1)
			}
			t.bytes.Add(uint64(n))
		}
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("receiving stream %d: %w", v.head.stream, err)
		}
	}
}
