// SPDX-License-Identifier: Apache-2.0

// Package traffic sends and receives test traffic over real sockets. It has parallel TCP streams,
// UDP streams with sequence numbers, optionally in trains (UDP_SEGMENT), and pings, one at a time.
// The receiver knows the pattern of the data, and so detects loss, duplication, reordering and
// corruption. The data has Marker in every 64 bytes, so that a capture shows whether it was
// encrypted.
//
// A Server waits for runs, and Run is the client. The client requests a run over a TCP connection, on which the server also
// reports what it received. It is a test tool: the client is not authenticated.
//
// Not for other programs: it may change without notice.
package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Kind is the kind of traffic of a run.
type Kind string

// The kinds of runs.
const (
	TCP  Kind = "tcp"
	UDP  Kind = "udp"
	Ping Kind = "ping" // one datagram at a time, which the server returns
)

const (
	// MaxStreams is the largest number of streams in one run.
	MaxStreams = 256
	// DefaultSize is a UDP payload that fits a tunnel of MTU 1420, over IPv4 and IPv6.
	DefaultSize = 1344
	// maxSize is the largest UDP payload over IPv4.
	maxSize = 65507
	// maxTrain is UDP_MAX_SEGMENTS in Linux before 6.11.
	maxTrain = 64
)

// InNamespace calls f, which opens sockets, on a thread in the namespace of the sockets, as netlab.Host.Do does. nil means
// the current namespace.
type InNamespace func(f func() error) error

func (n InNamespace) do(f func() error) error {
	if n == nil {
		return f()
	}
	return n(f)
}

// Config configures Run.
type Config struct {
	Kind   Kind
	Server netip.AddrPort // where a Server listens
	// Streams is the number of parallel streams, each a flow of its own; 0 means 1.
	Streams int
	// Duration is how long to send; 0 means one second.
	Duration time.Duration
	// Size is the UDP payload in bytes, 32 to 65,507; 0 means DefaultSize.
	Size int
	// Train is the number of datagrams per send, at most 64, by UDP_SEGMENT; 0 and 1 send single
	// datagrams in batches. It is reduced to the number that fits into one send.
	Train int
	// Congestion is the congestion control of TCP streams, such as cubic; empty means the system's.
	Congestion string
	// Warmup is how long TCP streams have been received when the measurement of their rate begins. It is part of Duration.
	Warmup time.Duration
	// BitsPerSecond limits TCP and UDP payload, over all streams; 0 is unlimited.
	BitsPerSecond float64
	// Progress, if not nil, is called about five times per second, by one goroutine at a time.
	Progress    func(Progress)
	InNamespace InNamespace
}

// Progress describes a run in progress. Received arrives over the network under test, and may be late.
type Progress struct {
	Elapsed  time.Duration
	Received Counts
}

// Counts counts received data. Packets, Reordered and Duplicated count datagrams, and are zero for TCP.
type Counts struct {
	Bytes      uint64 `json:"bytes"`   // payload
	Packets    uint64 `json:"packets"` // without duplicates
	Reordered  uint64 `json:"reordered"`
	Duplicated uint64 `json:"duplicated"`
	Corrupt    uint64 `json:"corrupt"` // datagrams, or TCP streams, whose content was changed
}

func (c *Counts) add(o Counts) {
	c.Bytes += o.Bytes
	c.Packets += o.Packets
	c.Reordered += o.Reordered
	c.Duplicated += o.Duplicated
	c.Corrupt += o.Corrupt
}

// Stream is the result of one stream.
type Stream struct {
	SentBytes   uint64 `json:"sent_bytes"`
	SentPackets uint64 `json:"sent_packets"`
	Counts
	Seconds float64 `json:"seconds"` // from the first to the last byte received, without the warm-up
	// WarmupBytes is the part of Bytes that arrived before Seconds began.
	WarmupBytes uint64 `json:"warmup_bytes,omitempty"`
	// TransmittedBytes and RetransmittedBytes are TCP's payload on the wire, the first of them with the second (TCP_INFO).
	TransmittedBytes   uint64 `json:"transmitted_bytes,omitempty"`
	RetransmittedBytes uint64 `json:"retransmitted_bytes,omitempty"`
}

// Result is the result of a run. Its counters are sums over all streams.
type Result struct {
	Kind        Kind   `json:"kind"`
	Size        int    `json:"size,omitempty"`  // UDP payload
	Train       int    `json:"train,omitempty"` // datagrams per send, as used
	SentBytes   uint64 `json:"sent_bytes"`
	SentPackets uint64 `json:"sent_packets"`
	Counts
	LostBytes        uint64   `json:"lost_bytes"`
	LostPackets      uint64   `json:"lost_packets"`
	Retransmitted    float64  `json:"retransmitted"` // share of TCP's payload on the wire
	Seconds          float64  `json:"seconds"`
	BitsPerSecond    float64  `json:"bits_per_second"`
	PacketsPerSecond float64  `json:"packets_per_second"`
	Streams          []Stream `json:"streams"`
	Latency          *Latency `json:"latency,omitempty"` // of a Ping
}

// Latency is the result of a Ping: round-trip times.
type Latency struct {
	Min  time.Duration `json:"min_ns"`
	P50  time.Duration `json:"p50_ns"`
	P99  time.Duration `json:"p99_ns"`
	Max  time.Duration `json:"max_ns"`
	Mean time.Duration `json:"mean_ns"`
}

func (c *Config) complete() error {
	c.Streams = max(c.Streams, 1)
	if c.Duration == 0 {
		c.Duration = time.Second
	}
	if c.Size == 0 {
		c.Size = DefaultSize
	}
	c.Train = min(max(c.Train, 1), maxTrain, max(maxSize/c.Size, 1))
	switch {
	case c.Kind != TCP && c.Kind != UDP && c.Kind != Ping:
		return fmt.Errorf("unknown kind %q: want tcp, udp or ping", c.Kind)
	case c.Streams > MaxStreams:
		return fmt.Errorf("%d streams, want at most %d", c.Streams, MaxStreams)
	case c.Size < headerLen || c.Size > maxSize:
		return fmt.Errorf("a UDP payload of %d bytes, want %d to %d", c.Size, headerLen, maxSize)
	case c.Duration < 0 || c.BitsPerSecond < 0 || c.Warmup < 0:
		return errors.New("the duration, the rate or the warm-up is negative")
	case c.Warmup >= c.Duration:
		return fmt.Errorf("a warm-up of %s in a run of %s", c.Warmup, c.Duration)
	}
	return nil
}

// sum computes the sums over the streams.
func (r *Result) sum() {
	var warmup, transmitted, retransmitted uint64
	for _, s := range r.Streams {
		warmup += s.WarmupBytes
		transmitted += s.TransmittedBytes
		retransmitted += s.RetransmittedBytes
		r.SentBytes += s.SentBytes
		r.SentPackets += s.SentPackets
		r.add(s.Counts)
		r.Seconds = max(r.Seconds, s.Seconds)
	}
	r.LostBytes = missing(r.SentBytes, r.Bytes)
	r.LostPackets = missing(r.SentPackets, r.Packets)
	if r.Seconds > 0 {
		r.BitsPerSecond = float64(r.Bytes-warmup) * 8 / r.Seconds
		r.PacketsPerSecond = float64(r.Packets) / r.Seconds
	}
	if transmitted > 0 {
		r.Retransmitted = float64(retransmitted) / float64(transmitted)
	}
}

func missing(sent, got uint64) uint64 {
	if got > sent {
		return 0
	}
	return sent - got
}
