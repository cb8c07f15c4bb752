// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// isa is the instruction set of a kernel. Registers hold one word of four blocks each in both: SVE2 contributes XAR,
// which rotates the exclusive or of two registers, on their low 128 bits, whatever the length of its vectors.
type isa struct {
	suffix string
	xar    bool
	rev    bool  // with XAR: rotate by 16 bits without it
	temps  []vec // temporary registers of xorRotateNEON
	table  vec   // rotate8
}

var (
	neon = isa{suffix: "NEON", temps: []vec{temp, temp + 1, temp + 2, temp + 3}, table: rotate8}
	sve2 = isa{suffix: "SVE2", xar: true}
)

// Vector registers 0 to 15 are the words of four blocks.
const (
	temp    vec = 16 // four registers
	rotate8 vec = 20
	word    vec = 21 // four registers: words of the initial state
	counter vec = 25 // what word 12 began with; the next two are words 14 and 15 in stream
	step    vec = 28 // four, in each lane; word 13 in stream
)

// General registers. poly.go has the registers of Poly1305.
const (
	state    reg = "R0"
	text     reg = "R1"
	passes   reg = "R2"
	rounds   reg = "R23"
	position reg = "R24"
	out      reg = "R4" // in stream, which does not authenticate
)

// A loop has ten double rounds in five turns.
const (
	doubleRounds = 10
	turns        = 5
)

// The words of the four quarter rounds of each round.
var (
	columns   = [4][4]vec{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}
	diagonals = [4][4]vec{{0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13}, {3, 4, 9, 14}}
)

// doubleRound is a column round and a diagonal round (RFC 8439 2.3).
func (cpu isa) doubleRound(c *code) {
	cpu.quarters(c, columns)
	cpu.quarters(c, diagonals)
}

// quarters are four quarter rounds side by side (RFC 8439 2.1).
func (cpu isa) quarters(c *code, q [4][4]vec) {
	for _, s := range [][4]int{{0, 1, 3, 16}, {2, 3, 1, 12}, {0, 1, 3, 8}, {2, 3, 1, 7}} {
		for _, w := range q {
			c.op("VADD", w[s[1]].s4(), w[s[0]].s4(), w[s[0]].s4())
		}
		var to, from [4]vec
		for i, w := range q {
			to[i], from[i] = w[s[2]], w[s[0]]
		}
		if cpu.xar {
			cpu.xorRotateSVE2(c, to[:], from[:], s[3])
			continue
		}
		for i := 0; i < 4; i += len(cpu.temps) {
			cpu.xorRotateNEON(c, to[i:i+len(cpu.temps)], from[i:], s[3])
		}
	}
}

// xorRotateNEON does to = (to ^ from) <<< bits.
func (cpu isa) xorRotateNEON(c *code, to, from []vec, bits int) {
	xor, two := to, bits != 16 && bits != 8
	if two {
		xor = cpu.temps
	}
	for i := range to {
		c.op("VEOR", from[i].b16(), to[i].b16(), xor[i].b16())
	}
	for i, v := range to {
		switch bits {
		case 16:
			c.op("VREV32", v.h8(), v.h8())
		case 8:
			c.op("VTBL", cpu.table.b16(), "["+v.b16()+"]", v.b16())
		default:
			c.op("VSHL", bits, xor[i].s4(), v.s4())
		}
	}
	for i, v := range to {
		if two {
			c.op("VSRI", 32-bits, xor[i].s4(), v.s4())
		}
	}
}

// xorRotateSVE2 does the same. Go's assembler does not know XAR (Arm ARM, C8.2, "XAR").
func (cpu isa) xorRotateSVE2(c *code, to, from []vec, bits int) {
	if cpu.rev && bits == 16 {
		cpu.xorRotateNEON(c, to, from, bits)
		return
	}
	for i := range to {
		right := 32 - bits
		word := 0x04603400 | (32-right)<<16 | int(from[i])<<5 | int(to[i])
		c.op("WORD", fmt.Sprintf("$0x%08x // XAR Z%d.S, Z%d.S, Z%d.S, #%d", word, to[i], to[i], from[i], right))
	}
}

// broadcast loads four words from position, each into all lanes of a register.
func (c *code) broadcast(first vec) {
	c.op("VLD4R.P", offset(position, 16), s4s(first, first+1, first+2, first+3))
}

// addInitial adds the initial state and turns words of blocks into blocks. Rows 0 to 3 of block i
// are then in registers i, 4+i, 8+i and 12+i. own are words that differ by block.
func (c *code) addInitial(own map[vec]vec) {
	c.op("MOVD", state, position)
	for g := range vec(4) {
		c.broadcast(word)
		row := [4]vec{4 * g, 4*g + 1, 4*g + 2, 4*g + 3}
		for i, w := range row {
			from, ok := own[w]
			if !ok {
				from = word + vec(i)
			}
			c.op("VADD", from.s4(), w.s4(), w.s4())
		}
		c.transpose(row, temp)
	}
}

// transpose turns a word of four blocks in each of four registers into four words of a block in
// each. It uses four temporary registers from t on.
func (c *code) transpose(r [4]vec, t vec) {
	c.op("VTRN1", r[1].s4(), r[0].s4(), t.s4())
	c.op("VTRN2", r[1].s4(), r[0].s4(), (t + 1).s4())
	c.op("VTRN1", r[3].s4(), r[2].s4(), (t + 2).s4())
	c.op("VTRN2", r[3].s4(), r[2].s4(), (t + 3).s4())
	c.op("VTRN1", (t + 2).d2(), t.d2(), r[0].d2())
	c.op("VTRN1", (t + 3).d2(), (t + 1).d2(), r[1].d2())
	c.op("VTRN2", (t + 2).d2(), t.d2(), r[2].d2())
	c.op("VTRN2", (t + 3).d2(), (t + 1).d2(), r[3].d2())
}

// loop runs the twenty rounds, each two woven with other instructions.
func (f *file) loop(cpu isa, with code) {
	var c code
	for range doubleRounds / turns {
		cpu.doubleRound(&c)
	}
	f.op("MOVD", turns, rounds)
	f.label("rounds")
	f.put(weave(c, with))
	f.op("SUB", 1, rounds)
	f.op("CBNZ", rounds, "rounds")
}

// wipe leaves no keystream or key in a vector register.
func (f *file) wipe(registers vec) {
	for v := range registers {
		f.op("VEOR", v.b16(), v.b16(), v.b16())
	}
}

// stream writes the keystream of four arbitrary blocks per pass: one-time keys and the ends of texts.
func (f *file) stream(cpu isa) {
	const lanes = reg("R1")
	f.function("stream"+cpu.suffix, "(state *[16]uint32, lanes *laneGroup, passes int, out *byte)",
		arg{"state", state}, arg{"lanes", lanes}, arg{"passes", passes}, arg{"out", out})
	f.loadTable("rotate8", rotate8)
	f.op("ADD", 4*13, state, position)
	f.op("VLD1R", at(position), s4s(step))
	f.label("pass")
	f.op("VLD1.P", offset(lanes, 48), s4s(counter, counter+1, counter+2))
	f.op("MOVD", state, position)
	var c code
	for g := range vec(3) {
		c.broadcast(4 * g)
	}
	f.put(c)
	own := map[vec]vec{12: counter, 13: step, 14: counter + 1, 15: counter + 2}
	for w := vec(12); w < 16; w++ {
		f.op("VORR", own[w].b16(), own[w].b16(), w.b16())
	}
	f.loop(cpu, nil)
	c = nil
	c.addInitial(own)
	f.put(c)
	for block := range vec(4) {
		f.op("FSTPQ", quads(block, 4+block), offset(out, int(64*block)))
		f.op("FSTPQ", quads(8+block, 12+block), offset(out, int(64*block+32)))
	}
	f.op("ADD", 256, out)
	f.op("SUB", 1, passes)
	f.op("CBNZ", passes, "pass")
	f.wipe(word + 4)
	f.op("RET")
}

// xor adds the keystream to the text, 256 bytes in each pass.
func (f *file) xor(cpu isa) {
	f.function("xor"+cpu.suffix, "(state *[16]uint32, text *byte, passes int)",
		arg{"state", state}, arg{"text", text}, arg{"passes", passes})
	f.prepare()
	f.label("pass")
	f.initial()
	f.loop(cpu, nil)
	f.put(addToText())
	f.op("SUB", 1, passes)
	f.op("CBNZ", passes, "pass")
	f.wipe(word + 4)
	f.op("RET")
}

// xorMAC does as xor, and authenticates as much of another text meanwhile: ChaCha20 uses the vector units, Poly1305 the
// others.
func (f *file) xorMAC(cpu isa) {
	const blocks, blocksInTurn = 256 / 16, 3
	f.function("xorMAC"+cpu.suffix, "(state *[16]uint32, text *byte, passes int, mac *polyMAC, data *byte)",
		arg{"state", state}, arg{"text", text}, arg{"passes", passes}, arg{"mac", mac}, arg{"data", data})
	f.prepare()
	f.loadMAC()
	f.label("pass")
	f.initial()
	f.loop(cpu, polyBlocks(blocksInTurn))
	f.put(weave(addToText(), polyBlocks(blocks-turns*blocksInTurn)))
	f.op("SUB", 1, passes)
	f.op("CBNZ", passes, "pass")
	f.storeMAC()
	f.wipe(word + 4)
	f.op("RET")
}

// prepare sets the values that all passes need. counter is the counter of the next pass.
func (f *file) prepare() {
	f.loadTable("rotate8", rotate8)
	f.loadTable("counters", temp)
	f.loadTable("four", step)
	f.op("ADD", 4*12, state, position)
	f.op("VLD1R", at(position), s4s(counter))
	f.op("VADD", temp.s4(), counter.s4(), counter.s4())
}

// initial sets the four blocks to the initial state.
func (f *file) initial() {
	f.op("MOVD", state, position)
	var c code
	for g := range vec(4) {
		c.broadcast(4 * g)
	}
	f.put(c)
	f.op("VORR", counter.b16(), counter.b16(), vec(12).b16())
}

// addToText ends a pass.
func addToText() (c code) {
	c.addInitial(map[vec]vec{12: counter})
	c.op("VADD", step.s4(), counter.s4(), counter.s4())
	for block := range vec(4) {
		c.addBlock([4]vec{block, 4 + block, 8 + block, 12 + block}, temp)
	}
	return c
}

// addBlock adds a block of keystream to the text, with four temporary registers from t on.
func (c *code) addBlock(stream [4]vec, t vec) {
	c.op("VLD1", at(text), b16s(t))
	for i, s := range stream {
		c.op("VEOR", s.b16(), (t + vec(i)).b16(), (t + vec(i)).b16())
	}
	c.op("VST1.P", b16s(t), offset(text, 64))
}
