// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/doctor/facts"
)

func cpuChecks() []Check {
	return []Check{
		check("cpu-count", "processors, and how many share a core (SMT)", judgeCPUs,
			"a lane for each is what makes the tunnel faster than one core"),
		check("cpu-cipher", "the ChaCha20-Poly1305 that this processor can run", judgeCipher,
			"sealing and opening is the largest part of a lane's work"),
		check("cpu-governor", "who sets the processors' frequency", judgeGovernor,
			"others than performance raise it only after the load has been there for milliseconds").fixable(),
		check("cpu-idle", "idle states, and what /dev/cpu_dma_latency allows", judgeIdle,
			"the first packet after a pause waits until its processor has woken up"),
	}
}

func judgeCPUs(f *facts.Facts, r *recorder) {
	n := len(f.CPU.Online.Value)
	switch {
	case f.CPU.Online.Err != nil:
		r.unknown("", f.CPU.Online.Err)
	case n < 2:
		r.warn("", "one processor: there is nothing to spread over", "give the machine more processors")
	case f.CPU.SMT.Value && f.CPU.Cores > 0:
		r.ok("", "%d processors on %d cores (SMT)", n, f.CPU.Cores)
	default:
		r.ok("", "%d processors", n)
	}
}

func judgeCipher(f *facts.Facts, r *recorder) {
	if f.Cipher == f.Fallback {
		r.warn("", f.Cipher+": packet by packet", "a processor with AVX-512 (IFMA, VBMI2) runs the train cipher")
		return
	}
	r.ok("", "%s", f.Cipher)
}

const governorWanted = "performance"

func judgeGovernor(f *facts.Facts, r *recorder) {
	governors := f.CPU.Governors
	if governors.Err != nil {
		r.unknown("", governors.Err)
		return
	}
	var changes []Change
	for _, cpu := range f.CPU.Online.Value {
		if g, scaled := governors.Value[cpu]; scaled && g != governorWanted {
			changes = append(changes, Change{
				Kind: Sysfs, Target: facts.GovernorPath(cpu)[len("sys/"):], Before: g, After: governorWanted,
			})
		}
	}
	switch {
	case len(governors.Value) == 0:
		r.ok("", "the kernel sets none: a virtual machine, or the firmware does")
	case len(changes) > 0:
		r.warn("", fmt.Sprintf("%s on %d of %d processors", changes[0].Before, len(changes), len(governors.Value)), "", changes...)
	default:
		r.ok("", governorWanted)
	}
}

// mostIdle is what waking up may take at most.
const mostIdle = 100 * time.Microsecond

func judgeIdle(f *facts.Facts, r *recorder) {
	states := f.CPU.Idle
	if states.Err != nil {
		r.unknown("", states.Err)
		return
	}
	allowed, held := time.Duration(1<<62), ""
	if l := f.CPU.Latency; l.Err == nil {
		allowed = l.Value
	}
	usable := slices.DeleteFunc(slices.Clone(states.Value), func(s facts.IdleState) bool { return s.Off })
	if slices.ContainsFunc(usable, func(s facts.IdleState) bool { return s.Latency > allowed }) {
		held = fmt.Sprintf(", as /dev/cpu_dma_latency allows %v", allowed)
		usable = slices.DeleteFunc(usable, func(s facts.IdleState) bool { return s.Latency > allowed })
	}
	if len(usable) == 0 {
		r.ok("", "no idle state%s", held)
		return
	}
	deepest := slices.MaxFunc(usable, func(a, b facts.IdleState) int { return int(a.Latency - b.Latency) })
	found := fmt.Sprintf("the deepest state, %s, takes %v to leave%s", deepest.Name, deepest.Latency, held)
	if deepest.Latency > mostIdle {
		r.warn("", found, fmt.Sprintf("cpupower idle-set -D %d", mostIdle.Microseconds()))
		return
	}
	r.ok("", "%s", found)
}
