// SPDX-License-Identifier: Apache-2.0

package traffic

import "time"

// maxBehind is how much a sender that was held up may catch up on.
const maxBehind = 5 * time.Millisecond

// pace spaces sends out to a rate. The zero value does not limit.
type pace struct {
	perByte float64 // nanoseconds
	due     time.Time
}

func newPace(bitsPerSecond float64, start time.Time) pace {
	if bitsPerSecond <= 0 {
		return pace{}
	}
	return pace{perByte: 8e9 / bitsPerSecond, due: start}
}

// wait accounts for n bytes to be sent at now and returns how long to wait before.
func (p *pace) wait(now time.Time, n int) time.Duration {
	if p.perByte == 0 {
		return 0
	}
	if earliest := now.Add(-maxBehind); p.due.Before(earliest) {
		p.due = earliest
	}
	wait := p.due.Sub(now)
	p.due = p.due.Add(time.Duration(float64(n) * p.perByte))
	return max(wait, 0)
}

// hold waits until n bytes may be sent; false means that end comes first.
func (p *pace) hold(n int, end time.Time) bool {
	now := time.Now()
	if !now.Before(end) {
		return false
	}
	if wait := p.wait(now, n); wait > 0 {
		if !now.Add(wait).Before(end) {
			return false
		}
		time.Sleep(wait)
	}
	return true
}
