// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"
	"time"
)

// Result is the result of a run. It excludes the warm-up, except in Offered, Delivered, Queued and Lost, which are bytes since the
// beginning: Offered = Delivered + Queued + the sum of Lost.
type Result struct {
	// BitsPerSecond is the throughput at the receiving applications. LostShare is the share of the sent bytes that was lost.
	BitsPerSecond float64
	LostShare     float64

	Offered, Delivered, Queued int64
	Lost                       map[Drop]int64
	// Reordered counts trains that arrived after a later train of their flow.
	Reordered int

	// Use is the share of the cores' time by use, at the sender and at the receiver. On one machine both are the same.
	Use [2][]float64
	// Busiest is the utilization of the busiest resource of each kind, the highest first.
	Busiest []Busy

	// Latency is the time from the sender's TUN queue to the receiving application: mean, median and 99th percentile.
	Latency, LatencyP50, LatencyP99 time.Duration
	// Finish is the completion time of short flows: median and 99th percentile.
	Finish, FinishP99 time.Duration
	Trains            int
}

// Busy is the utilization of a resource.
type Busy struct {
	Resource string
	Share    float64
}

// result computes the Result.
func (s *sim) result() *Result {
	duration := float64(s.now - s.figures.since)
	r := &Result{
		BitsPerSecond: float64(s.figures.bytes) * 8e9 / duration,
		Offered:       s.offered, Delivered: s.deliveredBytes, Lost: map[Drop]int64{}, Reordered: s.reordered,
		Trains: len(s.figures.latency),
	}
	if sum := s.figures.bytes + s.figures.lost; sum > 0 {
		r.LostShare = float64(s.figures.lost) / float64(sum)
	}
	for d, n := range s.lost {
		if n > 0 {
			r.Lost[Drop(d)] = n
		}
	}
	for at := atApp; at < locationCount; at++ {
		r.Queued += s.at[at]
	}
	r.Use = [2][]float64{s.a.machine.shares(duration), s.b.machine.shares(duration)}
	r.Busiest = s.busiest(duration)
	r.Latency, r.LatencyP50, r.LatencyP99 = summary(s.figures.latency)
	_, r.Finish, r.FinishP99 = summary(s.figures.finished)
	return r
}

// shares returns the share of the cores' time by use.
func (m *machine) shares(duration float64) []float64 {
	out := make([]float64, useCount)
	for _, c := range m.cores {
		for u, ns := range c.used {
			out[u] += float64(ns) / duration / float64(len(m.cores))
		}
	}
	return out
}

// The names of resources, in Busy and Bound.
const (
	ResourceSender     = "sender's cores"
	ResourceReceiver   = "receiver's cores"
	ResourceTxLane     = "transmit lane"
	ResourceRxLane     = "receive lane"
	ResourceWriter     = "writing lane"
	ResourceQueue      = "NIC queue"
	ResourceAppSend    = "sending application"
	ResourceAppReceive = "receiving application"
	ResourceNonce      = "counter's line"
	ResourceWindow     = "window's line"
	ResourceKernel     = "kernel's lines in sendmsg"
	ResourceLink       = "wire"
)

// busiest returns the utilization of the busiest resource of each kind.
func (s *sim) busiest(duration float64) []Busy {
	share := func(ns int64) float64 { return min(float64(ns)/duration, 1) }
	total := func(m *machine) (sum float64) {
		for _, x := range m.shares(duration) {
			sum += x
		}
		return sum
	}
	lane := func(lanes []*lane) (top float64) {
		for _, l := range lanes {
			top = max(top, share(l.thread.ran))
		}
		return top
	}
	list := []Busy{
		{ResourceSender, total(s.a.machine)},
		{ResourceReceiver, total(s.b.machine)},
		{ResourceTxLane, lane(s.a.tx)},
		{ResourceRxLane, lane(s.b.rx)},
		{ResourceNonce, share(s.a.nonce.held)},
		{ResourceWindow, share(s.b.window.held)},
		{ResourceKernel, share(s.a.kernel.held)},
	}
	queue, send, receive := 0.0, 0.0, 0.0
	for _, q := range s.b.queues {
		queue = max(queue, share(q.busy))
	}
	writing := 0.0
	for _, w := range s.b.writers {
		writing = max(writing, share(w.thread.ran))
	}
	for _, f := range s.elephants {
		send, receive = max(send, share(f.app.ran)), max(receive, share(f.reader.ran))
	}
	list = append(list, Busy{ResourceQueue, queue}, Busy{ResourceWriter, writing}, Busy{ResourceAppSend, send}, Busy{ResourceAppReceive, receive})
	if s.cfg.Link > 0 {
		list = append(list, Busy{ResourceLink, min(float64(s.figures.bytes)*8e9/duration/s.cfg.Link, 1)})
	}
	slices.SortStableFunc(list, func(x, y Busy) int { return cmp.Compare(y.Share, x.Share) })
	return list
}

// summary returns the mean, the median and the 99th percentile of times in ns.
func summary(ns []int64) (mean, p50, p99 time.Duration) {
	if len(ns) == 0 {
		return 0, 0, 0
	}
	sorted := slices.Sorted(slices.Values(ns))
	sum := 0.0
	for _, n := range sorted {
		sum += float64(n)
	}
	at := func(q float64) time.Duration { return time.Duration(sorted[int(q*float64(len(sorted)-1))]) }
	return time.Duration(sum / float64(len(sorted))), at(0.5), at(0.99)
}
