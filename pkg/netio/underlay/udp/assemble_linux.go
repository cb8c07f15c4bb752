// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"slices"

	"golang.org/x/sys/unix"
)

// program is classic BPF (linux/filter.h, Documentation/networking/filter.rst), put together from its end: jumps only go
// forward, so that whatever one leads to is there already.
type program struct {
	code []unix.SockFilter // the last instruction first
	rets map[uint32]label  // of each value, where it is returned next
	hops map[label]label   // of what is far, the next jump that leads there
}

// label is a place in a program: how many instructions there are from it to the end.
type label int

// reach is how far a branch leads at the most: its offsets are bytes, and another jump may come between.
const reach = 254

func newProgram() *program {
	return &program{rets: map[uint32]label{}, hops: map[label]label{}}
}

// put places an instruction before all others.
func (p *program) put(op uint16, k uint32) label { return p.place(unix.SockFilter{Code: op, K: k}) }

func (p *program) place(i unix.SockFilter) label {
	p.code = append(p.code, i)
	return label(len(p.code))
}

// branch places a comparison of the accumulator with k, and goes to yes or no.
func (p *program) branch(op uint16, k uint32, yes, no label) label {
	yes = p.near(yes)
	no = p.near(no)
	here := label(len(p.code))
	return p.place(unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | op, K: k, Jt: uint8(here - yes), Jf: uint8(here - no)})
}

// near returns a place within reach that is, or leads to, the given one.
func (p *program) near(to label) label {
	for _, l := range []label{to, p.hops[to]} {
		if l != 0 && p.within(l) {
			return l
		}
	}
	p.hops[to] = p.jump(to)
	return p.hops[to]
}

func (p *program) within(l label) bool { return len(p.code)-int(l) < reach }

// jump goes to any place.
func (p *program) jump(to label) label {
	return p.put(unix.BPF_JMP|unix.BPF_JA, uint32(len(p.code)-int(to)))
}

// ret returns k.
func (p *program) ret(k uint32) label {
	if l := p.rets[k]; l != 0 && p.within(l) {
		return l
	}
	p.rets[k] = p.put(unix.BPF_RET|unix.BPF_K, k)
	return p.rets[k]
}

// assembled returns the instructions in the order of execution.
func (p *program) assembled() []unix.SockFilter {
	code := slices.Clone(p.code)
	slices.Reverse(code)
	return code
}
