// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// program is a classic BPF program (linux/filter.h, Documentation/networking/filter.rst). It is assembled from its end:
// jumps only go forward, so the target of a jump exists already.
type program struct {
	code  []unix.SockFilter // in reverse order
	rets  map[uint32]label  // return value to its nearest RET
	jumps map[label]label   // distant target to the nearest jump to it
}

// label is a position in a program: the number of instructions from it to the end.
type label int

// maxBranch is the maximum distance of a branch. Its offsets are bytes, and another jump may come between.
const maxBranch = 254

func newProgram() *program {
	return &program{rets: map[uint32]label{}, jumps: map[label]label{}}
}

// emit prepends an instruction.
func (p *program) emit(op uint16, k uint32) label { return p.push(unix.SockFilter{Code: op, K: k}) }

func (p *program) push(i unix.SockFilter) label {
	p.code = append(p.code, i)
	return label(len(p.code))
}

// branch emits a comparison of the accumulator with k that goes to yes or no.
func (p *program) branch(op uint16, k uint32, yes, no label) label {
	yes = p.reachable(yes)
	no = p.reachable(no)
	here := label(len(p.code))
	return p.push(unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | op, K: k, Jt: uint8(here - yes), Jf: uint8(here - no)})
}

// reachable returns a label within maxBranch that is the given one, or jumps to it.
func (p *program) reachable(to label) label {
	for _, l := range []label{to, p.jumps[to]} {
		if l != 0 && p.inRange(l) {
			return l
		}
	}
	p.jumps[to] = p.jump(to)
	return p.jumps[to]
}

func (p *program) inRange(l label) bool { return len(p.code)-int(l) < maxBranch }

// jump emits a jump to any label.
func (p *program) jump(to label) label {
	return p.emit(unix.BPF_JMP|unix.BPF_JA, uint32(len(p.code)-int(to)))
}

// ret returns a label that returns k.
func (p *program) ret(k uint32) label {
	if l := p.rets[k]; l != 0 && p.inRange(l) {
		return l
	}
	p.rets[k] = p.emit(unix.BPF_RET|unix.BPF_K, k)
	return p.rets[k]
}

// instructions returns the instructions in the order of execution.
func (p *program) instructions() []unix.SockFilter {
	code := slices.Clone(p.code)
	slices.Reverse(code)
	return code
}
