// SPDX-License-Identifier: Apache-2.0

package main

// Kernels of eight blocks: two sets of four, whose rounds alternate, so that a wide core overlaps
// them. With XAR all words fit the 32 registers. NEON needs one register for a table and one for a
// temporary value. So the sets share a pair of registers for two of their words each, which wait
// in memory during the other set's round. They are of the row that a round needs last.

const (
	spill       reg = "R25" // memory for registers
	nextCounter reg = "R26"

	shared     vec = 28 // the pair, in NEON
	singleTemp vec = 30
	spillPair      = 0  // offset of each set's pair
	spillFinal     = 64 // eight registers while the first set ends
)

var neon8 = isa{suffix: "NEON", temps: []vec{singleTemp}, table: singleTemp + 1}

// set is where four blocks are.
type set struct {
	word  [16]vec
	final vec // eight registers that are free while the set ends
	pair  int // where in memory its pair waits
}

func (cpu isa) sets() (a, b set) {
	for w := range vec(16) {
		a.word[w], b.word[w] = w, 16+w
	}
	a.final, b.final = 24, 0
	if cpu.xar {
		return a, b
	}
	for w := range vec(16) {
		switch {
		case w == 10 || w == 11:
			a.word[w], b.word[w] = shared+w-10, shared+w-10
		case w > 11:
			a.word[w], b.word[w] = w-2, 14+w-2
		default:
			b.word[w] = 14 + w
		}
	}
	a.final, b.pair = 14, spillPair+32
	return a, b
}

// doubleRound8 is a double round of both sets. The second rotates by 16 bits without XAR, of which Neoverse V2 begins one
// per cycle beside three other vector instructions. With that in both sets V2 gains more, but N2 loses, which begins two
// vector instructions of any kind (`make cycles-arm64`).
func (cpu isa) doubleRound8(c *code) {
	a, b := cpu.sets()
	second := cpu
	second.rev = true
	for _, q := range [][4][4]vec{columns, diagonals} {
		cpu.quarters(c, a.registers(q))
		cpu.exchange(c, a, b)
		second.quarters(c, b.registers(q))
		cpu.exchange(c, b, a)
	}
}

func (s set) registers(words [4][4]vec) (r [4][4]vec) {
	for i := range words {
		for j, w := range words[i] {
			r[i][j] = s.word[w]
		}
	}
	return r
}

// exchange puts a set's pair into memory and takes the other's.
func (cpu isa) exchange(c *code, from, to set) {
	if !cpu.xar {
		c.op("FSTPQ", quads(shared, shared+1), offset(spill, from.pair))
		c.op("FLDPQ", offset(spill, to.pair), quads(shared, shared+1))
	}
}

// initial8 sets a set to the initial state, with counters from nextCounter and the offset on. The third row comes first: in
// NEON it takes two more registers for a moment.
func (c *code) initial8(cpu isa, s set, after int) {
	c.op("ADD", 4*8, state, position)
	c.broadcast(s.word[8])
	if !cpu.xar {
		c.op("FSTPQ", quads(s.word[8]+2, s.word[8]+3), offset(spill, s.pair))
	}
	c.counters(s.word[12], s.word[0], after)
	c.op("MOVD", state, position)
	c.broadcast(s.word[0])
	c.broadcast(s.word[4])
	c.op("ADD", 4*13-4*8, position)
	for w := 13; w < 16; w++ {
		c.op("VLD1R.P", offset(position, 4), s4s(s.word[w]))
	}
}

// counters sets a register to a set's word 12.
func (c *code) counters(to, t vec, after int) {
	c.op("MOVD", "$counters<>(SB)", position)
	c.op("VLD1", at(position), "["+t.b16()+"]")
	c.op("ADD", after, nextCounter, position)
	c.op("VDUP", position, to.s4())
	c.op("VADD", t.s4(), to.s4(), to.s4())
}

// final8 adds the initial state and adds the blocks to the text.
func (c *code) final8(s set, after int) {
	t, word := s.final, s.final+4
	c.op("MOVD", state, position)
	for g := range vec(4) {
		c.broadcast(word)
		if g == 3 {
			c.counters(word, t, after)
		}
		for i := range vec(4) {
			c.op("VADD", (word + i).s4(), s.word[4*g+i].s4(), s.word[4*g+i].s4())
		}
		c.transpose([4]vec(s.word[4*g:]), t)
	}
	for i := range 4 {
		c.addBlock([4]vec{s.word[i], s.word[4+i], s.word[8+i], s.word[12+i]}, t)
	}
}

// move stores or loads the eight registers that the first set needs to end.
func (c *code) move(name string, first vec) {
	for i := range vec(4) {
		two := quads(first+2*i, first+2*i+1)
		if m := offset(spill, int(spillFinal+32*i)); name == "FSTPQ" {
			c.op(name, two, m)
		} else {
			c.op(name, m, two)
		}
	}
}

// xorMAC8 does as xorMAC, 512 bytes in each pass.
func (f *file) xorMAC8(cpu isa) {
	const blocks, blocksInTurn = 512 / 16, 3
	f.function("xorMAC8"+cpu.suffix, "(state *[16]uint32, text *byte, passes int, mac *polyMAC, data, spill *byte)",
		arg{"state", state}, arg{"text", text}, arg{"passes", passes}, arg{"mac", mac}, arg{"data", data}, arg{"spill", spill})
	a, b := cpu.sets()
	f.op("MOVWU", offset(state, 4*12), nextCounter)
	if !cpu.xar {
		f.loadTable("rotate8", singleTemp+1)
	}
	f.loadMAC()
	f.label("pass")
	var c code
	c.initial8(cpu, b, 4)
	c.initial8(cpu, a, 0)
	if !cpu.xar {
		c.op("FLDPQ", offset(spill, a.pair), quads(shared, shared+1))
	}
	f.put(c)
	f.op("MOVD", doubleRounds, rounds)
	f.label("rounds")
	var round code
	cpu.doubleRound8(&round)
	f.put(weave(round, polyBlocks(blocksInTurn)))
	f.op("SUB", 1, rounds)
	f.op("CBNZ", rounds, "rounds")
	f.put(weave(cpu.end8(a, b), polyBlocks(blocks-doubleRounds*blocksInTurn)))
	f.op("ADD", 8, nextCounter)
	f.op("SUB", 1, passes)
	f.op("CBNZ", passes, "pass")
	f.storeMAC()
	f.wipe(32)
	f.op("RET")
}

// end8 ends a pass.
func (cpu isa) end8(a, b set) (c code) {
	c.move("FSTPQ", a.final)
	c.final8(a, 0)
	c.move("FLDPQ", a.final)
	if !cpu.xar {
		c.op("FLDPQ", offset(spill, b.pair), quads(shared, shared+1))
	}
	c.final8(b, 4)
	return c
}
