// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"runtime"
	"time"
)

// Shares is the CPU time of a Flow by process, in percent of all cores. Softirq work, such as another process's packets,
// is charged to the process that it interrupts.
type Shares struct {
	// Sender and Receiver are the traffic's ends, Tunnel both daemons.
	Sender, Tunnel, Receiver float64
}

// cpuTimes are the Shares as durations.
type cpuTimes struct{ sender, tunnel, receiver time.Duration }

// readCPUTimes reads the times of the daemons and the server, which outlive the traffic. The sender ends with it: Send takes
// its time from load.
func (l *Lab) readCPUTimes(to *Side) cpuTimes {
	t := cpuTimes{tunnel: cpuTime(l.pids())}
	if to.server != nil {
		t.receiver = cpuTime(to.server.p.PIDs())
	}
	return t
}

func (t cpuTimes) since(before cpuTimes) cpuTimes {
	return cpuTimes{t.sender - before.sender, t.tunnel - before.tunnel, t.receiver - before.receiver}
}

// over divides by the CPU time of all cores in that many seconds.
func (t cpuTimes) over(seconds float64) Shares {
	percent := func(d time.Duration) float64 { return 100 * d.Seconds() / seconds / float64(runtime.NumCPU()) }
	return Shares{Sender: percent(t.sender), Tunnel: percent(t.tunnel), Receiver: percent(t.receiver)}
}

func (s Shares) addTo(more map[string]float64) {
	more["sender_percent"], more["tunnel_percent"], more["receiver_percent"] = s.Sender, s.Tunnel, s.Receiver
}
