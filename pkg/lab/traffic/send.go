// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	chunksPerWrite = 4
	// pacedChunks is the number of chunks per write of a paced stream: 128 KiB, one write per millisecond at 1 Gbit/s.
	pacedChunks   = 2
	sendBatchSize = 32
	pingTimeout   = time.Second
)

// sendStream writes chunks until end and returns the bytes written. The last chunk may be incomplete.
func sendStream(conn *net.TCPConn, h header, body []byte, p pace, end time.Time) (sent uint64, err error) {
	chunks := chunksPerWrite
	if p.perByte != 0 {
		chunks = pacedChunks
	}
	buf := build(h, chunks, body)
	_ = conn.SetWriteDeadline(end)
	for seq := uint64(0); ; seq += uint64(chunks) {
		if !p.wait(len(buf), end) {
			return sent, conn.CloseWrite()
		}
		stamp(buf, chunkLen, seq)
		n, err := conn.Write(buf)
		sent += uint64(n)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return sent, conn.CloseWrite()
		case err != nil:
			return sent, fmt.Errorf("sending stream %d: %w", h.stream, err)
		}
	}
}

// datagramSender sends one UDP stream.
type datagramSender struct {
	conn  *net.UDPConn
	head  header
	body  []byte
	train int // datagrams per send; 1 if the kernel refuses UDP_SEGMENT
}

// send sends until end and returns the number of datagrams sent.
func (u *datagramSender) send(p pace, end time.Time) (sent uint64, err error) {
	_ = setsockopt(u.conn, unix.SOL_SOCKET, socketBuffer, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF)
	_ = u.conn.SetWriteDeadline(end)
	if u.train > 1 {
		if setsockopt(u.conn, unix.SOL_UDP, int(u.head.size), unix.UDP_SEGMENT) != nil {
			u.train = 1
		}
	}
	if u.train > 1 {
		sent, err = u.sendTrains(p, end)
		// EIO: the device has no checksum offload (udp(7), UDP_SEGMENT). EINVAL, EMSGSIZE: a datagram exceeds the path MTU,
		// which UDP_SEGMENT does not allow.
		if !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EMSGSIZE) {
			return sent, err
		}
		u.train = 1
		if err := setsockopt(u.conn, unix.SOL_UDP, 0, unix.UDP_SEGMENT); err != nil {
			return sent, fmt.Errorf("disabling UDP_SEGMENT: %w", err)
		}
	}
	return u.sendSingles(p, end, sent)
}

func (u *datagramSender) sendTrains(p pace, end time.Time) (sent uint64, err error) {
	size := int(u.head.size)
	buf := build(u.head, u.train, u.body)
	for p.wait(len(buf), end) {
		stamp(buf, size, sent)
		switch _, err := u.conn.Write(buf); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return sent, nil
		case errors.Is(err, unix.ENOBUFS):
			continue
		case err != nil:
			return sent, fmt.Errorf("sending a train of stream %d: %w", u.head.stream, err)
		}
		sent += uint64(u.train)
	}
	return sent, nil
}

func (u *datagramSender) sendSingles(p pace, end time.Time, sent uint64) (uint64, error) {
	size := int(u.head.size)
	buf := build(u.head, sendBatchSize, u.body)
	b, err := newSendBatch(u.conn, slices.Collect(slices.Chunk(buf, size)))
	if err != nil {
		return sent, err
	}
	n := u.batchSize(p)
	for p.wait(n*size, end) {
		stamp(buf, size, sent)
		done, err := b.send(n)
		sent += uint64(done)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return sent, nil
		case errors.Is(err, unix.ENOBUFS):
		case err != nil:
			return sent, fmt.Errorf("sending stream %d: %w", u.head.stream, err)
		}
	}
	return sent, nil
}

// batchSize returns the number of datagrams per send: the datagrams of one millisecond of a paced
// stream, so that slow streams do not send bursts.
func (u *datagramSender) batchSize(p pace) int {
	if p.perByte == 0 {
		return sendBatchSize
	}
	return min(max(int(1e6/(p.perByte*float64(u.head.size))), 1), sendBatchSize)
}

// ping sends one datagram after the other and waits for each to come back. Only stream 0 measures.
func (r *clientRun) ping(i int, h header, end time.Time) error {
	out := build(h, 1, r.body)
	in := make([]byte, len(out))
	s := &r.res.Streams[i]
	for time.Now().Before(end) {
		setSeq(out, s.SentPackets)
		begin := time.Now()
		_ = r.udp[i].SetDeadline(begin.Add(pingTimeout))
		if _, err := r.udp[i].Write(out); err != nil {
			return fmt.Errorf("sending a ping: %w", err)
		}
		s.SentPackets++
		s.SentBytes += uint64(len(out))
		switch err := waitForReply(r.udp[i], in, s.SentPackets-1); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return err
		}
		s.Packets++
		s.Bytes += uint64(len(out))
		s.Seconds = time.Since(r.begin).Seconds()
		if i == 0 {
			r.rtt = append(r.rtt, time.Since(begin))
		}
	}
	return nil
}

// waitForReply waits for the reply to ping seq. It ignores late replies to earlier pings.
func waitForReply(conn *net.UDPConn, buf []byte, seq uint64) error {
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return fmt.Errorf("waiting for a ping's reply: %w", err)
		}
		if h, err := parseHeader(buf[:n]); err == nil && h.seq == seq {
			return nil
		}
	}
}

// latencyOf returns nil if there were no replies.
func latencyOf(rtt []time.Duration) *Latency {
	if len(rtt) == 0 {
		return nil
	}
	slices.Sort(rtt)
	var sum time.Duration
	for _, d := range rtt {
		sum += d
	}
	at := func(q float64) time.Duration { return rtt[int(q*float64(len(rtt)-1))] }
	return &Latency{
		Min: rtt[0], P50: at(0.5), P99: at(0.99), Max: rtt[len(rtt)-1], Mean: sum / time.Duration(len(rtt)),
	}
}
