// SPDX-License-Identifier: Apache-2.0

package lane

import (
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

const (
	// WorkloadInterval is the time in nanoseconds after which a loop evaluates its traffic.
	WorkloadInterval = int64(10 * time.Millisecond)
	// minWorkload is the minimum number of packets per WorkloadInterval that is evaluated: 5,000 a second. With fewer no application
	// starves.
	minWorkload = 50
	// WorkloadHold is the time in nanoseconds for which a result holds while there is less traffic.
	WorkloadHold = int64(time.Second)
	// smallTrain is the number of packets per train below which datagrams are not carried in
	// trains. A train then costs the application as much as its packets.
	smallTrain = 16
)

// Workload describes the recent traffic of one loop of a lane. With trains its thread should run before applications: one train costs the
// application one system call. Single datagrams cost the application more CPU time than the lane. At a high rate the application would
// never run, and the datagrams that the lane has delivered would be dropped at its full socket.
type Workload struct {
	Packets, Datagrams, trains int   // of this interval
	since, evaluated           int64 // begin of this interval, time of the last evaluation
	yielding                   bool
	Yield                      func(bool) // Config.OnLoopStart; nil for none
}

// Note counts packets, datagrams (packets that belong to no TCP connection), and the trains in
// which they came. It calls yield when the result has changed.
func (w *Workload) Note(packets, datagrams, trains int, now int64) {
	w.Packets += packets
	w.Datagrams += datagrams
	w.trains += trains
	if w.Yield == nil || now-w.since < WorkloadInterval {
		return
	}
	if y := w.evaluate(now); y != w.yielding {
		w.yielding = y
		w.Yield(y)
	}
	w.Packets, w.Datagrams, w.trains, w.since = 0, 0, 0, now
}

// evaluate reports whether to yield.
func (w *Workload) evaluate(now int64) bool {
	if int64(w.Packets)*WorkloadInterval < minWorkload*(now-w.since) {
		return w.yielding && now-w.evaluated < WorkloadHold
	}
	w.evaluated = now
	return 2*w.Datagrams > w.trains && w.Packets < smallTrain*w.trains
}

// IsDatagram reports whether an IP packet belongs to no TCP connection. It does not look behind IPv6 extension headers.
func IsDatagram(ip []byte) bool {
	if packet.VersionOf(ip) == packet.Version4 {
		return packet.IPv4(ip).Protocol() != packet.TCP
	}
	return packet.IPv6(ip).NextHeader() != packet.TCP
}
