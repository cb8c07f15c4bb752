// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// While vectors do the rounds of a pass, general registers authenticate other texts. They do a
// unit of six blocks in each double round, which takes about as long. macRun says which text, and
// for which polyMAC (the Go types).
const (
	unitBlocks = 6

	runMAC   = 0
	runText  = 8
	runUnits = 16
	runSize  = 24

	macH = 0  // three quadwords
	macR = 24 // two
)

// Where a pass keeps what the registers do not hold, in the room of waitPtr, which chachaLanes256 has no use for.
const (
	macSaved = waitPtr // registers of the cutter
	macKey   = macSaved + 8*8
	macNow   = macKey + 2*8 // the present run
	macLeft  = macNow + 8   // how many, with it
	macUnits = macLeft + 8  // units left of it
	macPlace = macUnits + 8 // where they are
)

var (
	macRegs  = []reg.GPPhysical{reg.R9, reg.R10, reg.RDI, reg.R12, reg.R13, reg.R14, reg.R15, reg.RAX} // h0, h1, then temporary
	macH2    = reg.R11
	macText  = reg.RSI
	macSaves = []reg.GPPhysical{job, nonce, left, end, text, full, ctr, slot}
)

func macAt(off int) Mem { return Mem{Base: work, Disp: off} }

// startRuns takes the arguments that concern runs.
func startRuns() {
	Load(Param("count"), reg.RAX)
	MOVQ(reg.RAX, macAt(macLeft))
	TESTQ(reg.RAX, reg.RAX)
	JZ(LabelRef("gather"))
	Load(Param("runs"), reg.RAX)
	MOVQ(reg.RAX, macAt(macNow))
	beginRun()
	Load(Param("n"), left)
}

// beginRun takes the run in RAX, and overwrites RDX.
func beginRun() {
	MOVQ(Mem{Base: reg.RAX, Disp: runText}, reg.RDX)
	MOVQ(reg.RDX, macAt(macPlace))
	MOVQ(Mem{Base: reg.RAX, Disp: runUnits}, reg.RDX)
	MOVQ(reg.RDX, macAt(macUnits))
}

// fused256 is the loop of double rounds of both sets with a unit in each, for as long as there are units. It then jumps to
// plain, with RCX counting the double rounds that remain, or to done.
func fused256(shuffles Mem, plain, done string) {
	CMPQ(macAt(macLeft), U8(0))
	JE(LabelRef(plain))
	for i, r := range macSaves {
		MOVQ(r, macAt(macSaved+8*i))
	}
	loadRun()
	Label("fused")
	CMPQ(macAt(macUnits), U8(0))
	JE(LabelRef("nextRun"))
	steps, at, points := unit(), 0, 0
	between := func() {
		for points++; at < len(steps) && at*fusedPoints < points*len(steps); at++ {
			steps[at]()
		}
	}
	doubleRound256(0, shuffles, between)
	doubleRound256(1, shuffles, between)
	for ; at < len(steps); at++ {
		steps[at]()
	}
	DECQ(macAt(macUnits))
	DECQ(reg.RCX)
	JNZ(LabelRef("fused"))
	storeRun()
	restore()
	JMP(LabelRef(done))
	Label("nextRun")
	storeRun()
	ADDQ(U8(runSize), macAt(macNow))
	DECQ(macAt(macLeft))
	JZ(LabelRef("noRun"))
	MOVQ(macAt(macNow), reg.RAX)
	beginRun()
	loadRun()
	JMP(LabelRef("fused"))
	Label("noRun")
	restore()
	JMP(LabelRef(plain))
}

// fusedPoints is how often two double rounds call between.
const fusedPoints = 2 * 4 * 16

func restore() {
	for i, r := range macSaves {
		MOVQ(macAt(macSaved+8*i), r)
	}
}

func loadRun() {
	MOVQ(macAt(macNow), reg.RAX)
	MOVQ(macAt(macPlace), macText)
	MOVQ(Mem{Base: reg.RAX, Disp: runMAC}, reg.RAX)
	for i, h := range []reg.GPPhysical{macRegs[0], macRegs[1], macH2} {
		MOVQ(Mem{Base: reg.RAX, Disp: macH + 8*i}, h)
	}
	for i := range 2 {
		MOVQ(Mem{Base: reg.RAX, Disp: macR + 8*i}, reg.RDX)
		MOVQ(reg.RDX, macAt(macKey+8*i))
	}
}

func storeRun() {
	MOVQ(macAt(macNow), reg.RAX)
	MOVQ(macText, macAt(macPlace))
	MOVQ(macAt(macUnits), reg.RDX)
	MOVQ(reg.RDX, Mem{Base: reg.RAX, Disp: runUnits})
	MOVQ(Mem{Base: reg.RAX, Disp: runMAC}, reg.RAX)
	for i, h := range []reg.GPPhysical{macRegs[0], macRegs[1], macH2} {
		MOVQ(h, Mem{Base: reg.RAX, Disp: macH + 8*i})
	}
}

// unit is six times what polyMAC.block does. An even number of blocks leaves the sum in the registers where it was.
func unit() (steps []func()) {
	for i := range unitBlocks {
		r := append([]reg.GPPhysical{}, macRegs...)
		if i%2 == 1 {
			r[0], r[1], r[2], r[3] = r[2], r[3], r[0], r[1]
		}
		steps = append(steps, macBlock(16*i, r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7])...)
	}
	return append(steps, func() { ADDQ(U8(16*unitBlocks), macText) })
}

// macBlock adds the block at an offset and multiplies by r; the sum h0, h1 moves to t0, t1. Its columns do not overflow,
// as h2 is below 8 and the words of r are below 2^60.
func macBlock(at int, h0, h1, t0, t1, t2, t3, x, y reg.GPPhysical) []func() {
	h2, dx := macH2, reg.RDX
	return []func(){
		func() { ADDQ(Mem{Base: macText, Disp: at}, h0) },
		func() { ADCQ(Mem{Base: macText, Disp: at + 8}, h1) },
		func() { ADCQ(U8(1), h2) },
		func() { MOVQ(macAt(macKey), dx) },
		func() { MULXQ(h0, t0, t1) },
		func() { MULXQ(h1, x, t2) },
		func() { IMULQ(h2, dx) },
		func() { ADDQ(x, t1) },
		func() { ADCQ(dx, t2) },
		func() { MOVQ(macAt(macKey+8), dx) },
		func() { MULXQ(h0, x, y) },
		func() { ADDQ(x, t1) },
		func() { MULXQ(h1, x, t3) },
		func() { ADCQ(y, t2) },
		func() { IMULQ(h2, dx) },
		func() { ADDQ(x, t2) },
		func() { ADCQ(dx, t3) },
		// Add the part above 2^130 times 5: once times 4, in its position, and once times 1.
		func() { MOVQ(t2, h2) },
		func() { ANDQ(U8(3), h2) },
		func() { ANDQ(I8(-4), t2) },
		func() { ADDQ(t2, t0) },
		func() { ADCQ(t3, t1) },
		func() { ADCQ(U8(0), h2) },
		func() { SHRQ(U8(2), t3, t2) },
		func() { SHRQ(U8(2), t3) },
		func() { ADDQ(t2, t0) },
		func() { ADCQ(t3, t1) },
		func() { ADCQ(U8(0), h2) },
	}
}
