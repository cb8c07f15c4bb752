// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/doctor/facts"
	"github.com/ropewalk/ropewalk/pkg/protocol/chachapoly"
)

func cpuChecks() []Check {
	return []Check{
		check("cpu-count", "online CPUs and SMT", evaluateCPUs,
			"a lane uses one CPU: with fewer CPUs, fewer lanes work at the same time"),
		check("cpu-cipher", "ChaCha20-Poly1305 implementation for this CPU", evaluateCipher,
			"encryption and decryption take most of a lane's CPU time"),
		check("cpu-governor", "CPU frequency governor (cpufreq)", evaluateGovernor,
			"other governors than performance raise the frequency only after milliseconds of load").fixable(),
		check("cpu-idle", "CPU idle states (cpuidle) and the limit in /dev/cpu_dma_latency", evaluateIdle,
			"the first packet after an idle period waits for the CPU's exit latency"),
		check("cpu-group", "scheduler's group of the daemon: cgroup of the CPU controller, or autogroup", evaluateGroup,
			"the kernel divides CPU time among groups first; the lanes' nice value counts only within the daemon's group"),
	}
}

// evaluateGroup warns of a group that others precede. The manifests of pods give theirs what it needs.
func evaluateGroup(f *facts.Facts, r *recorder) {
	g, daemon := f.CPU.Group.Value, f.CPU.Daemon
	found := fmt.Sprintf("%s (process %d)", g, daemon)
	switch {
	case f.CPU.Group.Err != nil:
		r.unknown("", f.CPU.Group.Err)
	case daemon == 0:
		r.ok("", "%s (this process, no daemon runs)", g)
	case f.Process.AgentPod || f.Process.EnginePod:
		r.ok("", "%s", found)
	case g.Weight > 0 && g.Weight < g.Usual:
		r.warn("", fmt.Sprintf("%s, less than %d, which other groups have by default", found, g.Usual),
			fmt.Sprintf("set CPUWeight=%d or more in the daemon's unit", g.Usual))
	case g.AutogroupNice > 0:
		r.warn("", found+": others have 0 by default", fmt.Sprintf("echo 0 > /proc/%d/autogroup", daemon))
	default:
		r.ok("", "%s", found)
	}
}

func evaluateCPUs(f *facts.Facts, r *recorder) {
	n := len(f.CPU.Online.Value)
	switch {
	case f.CPU.Online.Err != nil:
		r.unknown("", f.CPU.Online.Err)
	case n < 2:
		r.warn("", "1 CPU: no parallelism", "add CPUs to the machine")
	case f.CPU.SMT.Value && f.CPU.Cores > 0:
		r.ok("", "%d CPUs on %d cores (SMT)", n, f.CPU.Cores)
	default:
		r.ok("", "%d CPUs", n)
	}
}

func evaluateCipher(f *facts.Facts, r *recorder) {
	switch {
	case len(f.CipherFailed) > 0:
		r.warn("", fmt.Sprintf("%s, without %s: self-test failed", f.Cipher, strings.Join(f.CipherFailed, ", ")),
			"use another CPU, or update the emulator: it computes vector instructions wrongly")
	case f.Cipher == f.Fallback && !hasVectorCipher(f):
		r.warn("", f.Cipher+": one packet at a time",
			"use a CPU with AVX2 and BMI2, or AVX-512 (IFMA, VBMI2), which encrypts several packets of a train at once")
	default:
		r.ok("", "%s%s", f.Cipher, cipherSpeed(f.CipherChoices))
	}
}

// hasVectorCipher reports whether this CPU can encrypt several packets at once. Then the fallback is in use only where it is the fastest.
func hasVectorCipher(f *facts.Facts) bool {
	return slices.ContainsFunc(f.CipherChoices, func(c chachapoly.Choice) bool { return c.Took > 0 })
}

// cipherSpeed describes the speed for trains of full packets.
func cipherSpeed(choices []chachapoly.Choice) (text string) {
	last := map[string]*chachapoly.Choice{}
	for i := range choices {
		last[choices[i].Operation] = &choices[i]
	}
	for _, op := range []string{"seal", "open"} {
		if c := last[op]; c != nil && c.Took > 0 {
			text += fmt.Sprintf(", %s %.1f GB/s (%.1f × x/crypto)", op, float64(c.Messages*c.Bytes)/float64(c.Took.Nanoseconds()), float64(c.Generic)/float64(c.Took))
		}
	}
	return text
}

const performanceGovernor = "performance"

func evaluateGovernor(f *facts.Facts, r *recorder) {
	governors := f.CPU.Governors
	if err := cmp.Or(f.CPU.Online.Err, governors.Err); err != nil {
		r.unknown("", err)
		return
	}
	var changes []Change
	for _, cpu := range f.CPU.Online.Value {
		if g, scaled := governors.Value[cpu]; scaled && g != performanceGovernor {
			changes = append(changes, Change{
				Kind: Sysfs, Target: strings.TrimPrefix(facts.GovernorPath(cpu), "sys/"), Before: g, After: performanceGovernor,
			})
		}
	}
	switch {
	case len(governors.Value) == 0:
		r.ok("", "no cpufreq driver (virtual machine, or the firmware sets the frequency)")
	case len(changes) > 0:
		r.warn("", fmt.Sprintf("%s on %d of %d CPUs", changes[0].Before, len(changes), len(governors.Value)), "", changes...)
	default:
		r.ok("", performanceGovernor)
	}
}

// maxIdleLatency is the largest acceptable exit latency of an idle state.
const maxIdleLatency = 100 * time.Microsecond

func evaluateIdle(f *facts.Facts, r *recorder) {
	states := f.CPU.Idle
	if states.Err != nil {
		r.unknown("", states.Err)
		return
	}
	allowed, note := time.Duration(math.MaxInt64), "" // no limit
	if l := f.CPU.Latency; l.Err == nil {
		allowed = l.Value
	} else {
		note = fmt.Sprintf(", limit unknown (%v)", l.Err)
	}
	usable := slices.DeleteFunc(slices.Clone(states.Value), func(s facts.IdleState) bool { return s.Off })
	if slices.ContainsFunc(usable, func(s facts.IdleState) bool { return s.Latency > allowed }) {
		note = fmt.Sprintf(", limited by /dev/cpu_dma_latency to %v", allowed)
		usable = slices.DeleteFunc(usable, func(s facts.IdleState) bool { return s.Latency > allowed })
	}
	if len(usable) == 0 {
		r.ok("", "no idle state in use%s", note)
		return
	}
	deepest := slices.MaxFunc(usable, func(a, b facts.IdleState) int { return int(a.Latency - b.Latency) })
	found := fmt.Sprintf("deepest idle state %s, exit latency %v%s", deepest.Name, deepest.Latency, note)
	if deepest.Latency > maxIdleLatency {
		r.warn("", found, fmt.Sprintf("cpupower idle-set -D %d", maxIdleLatency.Microseconds()+1)) // -D also disables states of that latency
		return
	}
	r.ok("", "%s", found)
}
