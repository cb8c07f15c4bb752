// SPDX-License-Identifier: Apache-2.0

package traffic

import "time"

// maxCatchUp is the longest delay that a sender makes up for afterwards.
const maxCatchUp = 5 * time.Millisecond

// pace limits the rate of sends. The zero value has no limit.
type pace struct {
	perByte float64   // nanoseconds
	due     time.Time // of the next send
}

func newPace(bitsPerSecond float64, start time.Time) pace {
	if bitsPerSecond <= 0 {
		return pace{}
	}
	return pace{perByte: 8e9 / bitsPerSecond, due: start}
}

// delay accounts for n bytes to be sent, and returns how long to wait before sending them.
func (p *pace) delay(now time.Time, n int) time.Duration {
	if p.perByte == 0 {
		return 0
	}
	if earliest := now.Add(-maxCatchUp); p.due.Before(earliest) {
		p.due = earliest
	}
	wait := p.due.Sub(now)
	p.due = p.due.Add(time.Duration(float64(n) * p.perByte))
	return max(wait, 0)
}

// wait waits until n bytes may be sent. It returns false if that is after end.
func (p *pace) wait(n int, end time.Time) bool {
	now := time.Now()
	if !now.Before(end) {
		return false
	}
	if wait := p.delay(now, n); wait > 0 {
		if !now.Add(wait).Before(end) {
			return false
		}
		time.Sleep(wait)
	}
	return true
}
