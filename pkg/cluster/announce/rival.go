// SPDX-License-Identifier: Apache-2.0

package announce

import "time"

const (
	// rivalWrites, in rivalPeriod, are more than the writes that an earlier agent of this node had
	// begun.
	rivalWrites = 3
	rivalPeriod = 10 * time.Minute
	// rivalPause is the time between two writes while there is a rival: all other nodes follow each of them.
	rivalPause = 5 * time.Minute
)

// Rival notices another program that writes an object of which this agent should be the only
// writer. It is a second machine with the node's name, or has a stolen token. It is not safe for
// concurrent use.
type Rival struct {
	Writes uint64 // by others, since the agent's first write

	own     string
	seen    string // resource version of the last write by another
	name    string // its writer
	times   []time.Time
	present bool
	wrote   time.Time // when this agent last did; zero: never, or there was no rival
}

// Wrote records a write by this agent, under its name.
func (r *Rival) Wrote(now time.Time, own string) { r.own, r.wrote = own, now }

// Observe takes the object as the API server has it. It returns true when there is a rival that was not there before.
func (r *Rival) Observe(now time.Time, version, writer string) (found bool) {
	if r.own == "" {
		r.seen = version // by an earlier agent, which the informer may deliver until this agent's write
	}
	if r.own != "" && version != r.seen && writer != r.own {
		r.seen, r.name = version, writer
		r.Writes++
		r.times = append(r.times, now)
	}
	for len(r.times) > 0 && now.Sub(r.times[0]) >= rivalPeriod {
		r.times = r.times[1:]
	}
	if len(r.times) >= rivalWrites && !r.present {
		r.present, r.wrote, found = true, time.Time{}, true
	}
	r.present = r.present && len(r.times) > 0
	return found
}

// Name returns the rival's name, which it chose itself.
func (r *Rival) Name() (name string, present bool) { return r.name, r.present }

// Wait returns how long this agent should not write. The first write after a rival was found is free: it says so.
func (r *Rival) Wait(now time.Time) time.Duration {
	if !r.present || r.wrote.IsZero() {
		return 0
	}
	return max(rivalPause-now.Sub(r.wrote), 0)
}
