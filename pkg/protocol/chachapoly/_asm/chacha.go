// SPDX-License-Identifier: Apache-2.0

package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Size of polyJob and where its fields are; TestAssemblyMatchesLaneLayout compares them with the Go type.
const (
	jobKey  = 0
	jobText = 32
	jobN    = 40
	jobTag  = 48
	jobSize = 64
)

// The work area, in bytes from its first address that 64 divides. A lane is one block of keystream; lanes wait in four
// arrays until a pass takes sixteen of them. train_amd64.go knows fixed and slotSize.
const (
	laneGoal = 2 * 16               // lanes collected before a pass takes 16: the pass reads no freshly written lane
	laneTurn = 192                  // where lanes go back to the beginning
	laneMost = laneTurn + 2*16      // a write of 16 begins below laneTurn + 2
	laneCtr  = 0                    // uint32: block counter
	laneN1   = laneCtr + 4*laneMost // uint32: nonce, second word
	laneN2   = laneN1 + 4*laneMost  // uint32: nonce, third word
	lanePtr  = laneN2 + 4*laneMost  // uint64: where the 64 bytes are that the block is added to
	waitOut  = lanePtr + 8*laneMost // of the pass that was put by: words of sixteen blocks
	waitPtr  = waitOut + 16*64      // uint64: where they go
	junk     = waitPtr + 16*8       // the block of lanes that have no message
	fixed    = junk + 64
	slotKey  = 0  // of each job's slot: block 0, which has the one-time key
	slotTail = 64 // the text's last bytes when they fill no block
	slotSize = 128
)

// Registers that live through a whole call.
var (
	job   = reg.RDI // the next job
	nonce = reg.RSI // behind the nonce of the job that is being cut into lanes
	left  = reg.RDX // jobs not yet begun
	work  = reg.R8
	end   = reg.R9  // behind the last lane that waits
	text  = reg.R10 // rest of the job's whole blocks
	full  = reg.R11 // how many
	ctr   = reg.R12 // their first counter
	slot  = reg.R15 // of the next job
	wait  = reg.R13 // whether a pass has been put by
	head  = reg.RBX // first lane that waits
)

var zmm = []reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
	reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
}

func chacha() {
	ConstraintExpr("!purego")
	iota32, iota64, ones := constants()
	TEXT("chachaLanes512", NOSPLIT, chachaSignature)
	start()
	XORQ(wait, wait)
	gather(cutter{
		many: func() { many(iota32, iota64) },
		few:  func() { few(iota32, iota64) },
		tail: func() { tail(ones) },
	})
	run()
	drain()
	finish(ones)
	RET()
}

const chachaSignature = "func(state *[16]uint32, jobs *byte, nonces *uint64, n int, what uint64, area *byte)"

// start takes the arguments. No lane waits and no job has begun.
func start() {
	Load(Param("jobs"), job)
	Load(Param("nonces"), nonce)
	Load(Param("n"), left)
	Load(Param("area"), work)
	ADDQ(U8(63), work)
	ANDQ(I8(-64), work)
	LEAQ(Mem{Base: work, Disp: fixed}, slot)
	XORQ(head, head)
	XORQ(end, end)
	XORQ(full, full)
}

// constants are the numbers and 64 ones.
func constants() (words, offsets, ones Mem) {
	words, offsets = numbers("iota32", "offsets64")
	ones = GLOBL("ones64", RODATA|NOPTR)
	DATA(0, U64(1<<64-1))
	return words, offsets, ones
}

// numbers are 0, 1, 2, … 15 as 32-bit words, and 0, 64, … 15*64 as 64-bit words.
func numbers(words, offsets string) (w, o Mem) {
	w = GLOBL(words, RODATA|NOPTR)
	for i := range 16 {
		DATA(4*i, U32(i))
	}
	o = GLOBL(offsets, RODATA|NOPTR)
	for i := range 16 {
		DATA(8*i, U64(64*i))
	}
	return w, o
}

func lane(array int, at reg.GPPhysical, size uint8) Mem {
	return Mem{Base: work, Index: at, Scale: size, Disp: array}
}

// cutter is the part of cutting jobs into lanes that depends on the instruction set.
type cutter struct {
	many, few func() // write sixteen or four lanes of the present job; the next job overwrites those past its last one
	tail      func() // copies the R14 last bytes of the text, 1 to 63, to the slot, and keeps EAX and ECX
}

// gather cuts jobs into lanes until laneGoal wait or no job is left.
func gather(c cutter) {
	Label("gather")
	MOVQ(end, reg.RAX)
	SUBQ(head, reg.RAX)
	CMPQ(reg.RAX, U8(laneGoal))
	JAE(LabelRef("full"))
	CMPQ(end, U32(laneTurn))
	JAE(LabelRef("turn"))
	Label("cut")
	TESTQ(full, full)
	JZ(LabelRef("next"))
	CMPQ(full, U8(4))
	JBE(LabelRef("few"))
	c.many()
	MOVQ(U32(16), reg.RAX)
	CMPQ(full, reg.RAX)
	CMOVQLT(full, reg.RAX)
	ADDQ(reg.RAX, end)
	ADDQ(reg.RAX, ctr)
	SUBQ(reg.RAX, full)
	SHLQ(U8(6), reg.RAX)
	ADDQ(reg.RAX, text)
	JMP(LabelRef("gather"))
	Label("few")
	c.few()
	ADDQ(full, end)
	XORQ(full, full)
	JMP(LabelRef("gather"))
	begin(c.tail)
}

func many(iota32, iota64 Mem) {
	VPBROADCASTQ(text, reg.Z3)
	VPADDQ(iota64, reg.Z3, reg.Z4)
	VPADDQ(iota64.Offset(64), reg.Z3, reg.Z5)
	VMOVDQU64(reg.Z4, lane(lanePtr, end, 8))
	VMOVDQU64(reg.Z5, lane(lanePtr+64, end, 8))
	blocks(iota32, reg.Z0, reg.Z1, reg.Z2)
}

func few(iota32, iota64 Mem) {
	VPBROADCASTQ(text, reg.Y3)
	VPADDQ(iota64, reg.Y3, reg.Y4)
	VMOVDQU64(reg.Y4, lane(lanePtr, end, 8))
	blocks(iota32, reg.X0, reg.X1, reg.X2)
}

// blocks writes counters and nonces.
func blocks(iota32 Mem, c, n1, n2 Op) {
	VPBROADCASTD(ctr.As32(), c)
	VPADDD(iota32, c, c)
	VMOVDQU32(c, lane(laneCtr, end, 4))
	VPBROADCASTD(Mem{Base: nonce, Disp: -8}, n1)
	VMOVDQU32(n1, lane(laneN1, end, 4))
	VPBROADCASTD(Mem{Base: nonce, Disp: -4}, n2)
	VMOVDQU32(n2, lane(laneN2, end, 4))
}

// begin starts the next job with the lanes that do not point into its text: block 0 and the last, partial one.
func begin(tail func()) {
	Label("next")
	TESTQ(left, left)
	JZ(LabelRef("rest"))
	DECQ(left)
	MOVL(Mem{Base: nonce}, reg.EAX)
	MOVL(Mem{Base: nonce, Disp: 4}, reg.ECX)
	Load(Param("what"), reg.R14)
	TESTQ(U32(1), reg.R14)
	JZ(LabelRef("body"))
	put(U32(0), slotKey)
	Load(Param("what"), reg.R14)
	Label("body")
	TESTQ(U32(2), reg.R14)
	JZ(LabelRef("begun"))
	MOVQ(Mem{Base: job, Disp: jobText}, text)
	MOVQ(Mem{Base: job, Disp: jobN}, full)
	MOVQ(full, reg.R14)
	SHRQ(U8(6), full)
	MOVQ(U32(1), ctr)
	ANDQ(U32(63), reg.R14)
	JZ(LabelRef("begun"))
	tail()
	LEAQ(Mem{Base: full, Disp: 1}, reg.R14)
	put(reg.R14L, slotTail)
	Label("begun")
	ADDQ(U8(jobSize), job)
	ADDQ(U8(8), nonce)
	ADDQ(U32(slotSize), slot)
	JMP(LabelRef("gather"))
}

func tail(ones Mem) {
	BZHIQ(reg.R14, ones, reg.R14)
	KMOVQ(reg.R14, reg.K1)
	MOVQ(full, reg.R14)
	SHLQ(U8(6), reg.R14)
	VMOVDQU8_Z(Mem{Base: text, Index: reg.R14, Scale: 1}, reg.K1, reg.Z0)
	VMOVDQU32(reg.Z0, Mem{Base: slot, Disp: slotTail})
}

// put adds one lane for the job whose nonce is in EAX and ECX.
func put(counter Op, disp int) {
	MOVL(counter, lane(laneCtr, end, 4))
	MOVL(reg.EAX, lane(laneN1, end, 4))
	MOVL(reg.ECX, lane(laneN2, end, 4))
	LEAQ(Mem{Base: slot, Disp: disp}, reg.R14)
	MOVQ(reg.R14, lane(lanePtr, end, 8))
	INCQ(end)
}

// run takes sixteen lanes. When no job is left, junk fills them up.
func run() {
	fillUp("drain", func() {
		VPBROADCASTQ(reg.RCX, reg.Z0)
		VMOVDQU64(reg.Z0, lane(lanePtr, end, 8))
		VMOVDQU64(reg.Z0, lane(lanePtr+64, end, 8))
	})
	Label("full")
	loadState()
	TESTQ(wait, wait)
	JNZ(LabelRef("behind"))
	alone()
	JMP(LabelRef("mixed"))
	Label("behind")
	interleaved()
	Label("mixed")
	spill()
	ADDQ(U8(16), head)
	JMP(LabelRef("gather"))
	turn(64, func(from, to Mem) {
		VMOVDQU32(from, reg.Z0)
		VMOVDQU32(reg.Z0, to)
	})
}

// fillUp adds lanes of junk up to sixteen when no job is left. It jumps to none if no lane waits, and to full if sixteen do;
// otherwise RAX says how many wait. point writes the address in RCX to sixteen lanes from the end on.
func fillUp(none string, point func()) {
	Label("rest")
	MOVQ(end, reg.RAX)
	SUBQ(head, reg.RAX)
	JZ(LabelRef(none))
	CMPQ(reg.RAX, U8(16))
	JAE(LabelRef("full"))
	LEAQ(Mem{Base: work, Disp: junk}, reg.RCX)
	point()
	LEAQ(Mem{Base: head, Disp: 16}, end)
}

// turn moves the lanes that wait, fewer than laneGoal, to the beginning, size bytes at a time.
func turn(size int, move func(from, to Mem)) {
	Label("turn")
	for _, m := range [][2]int{{laneCtr, 4}, {laneN1, 4}, {laneN2, 4}, {lanePtr, 8}} {
		for i := 0; i < m[1]*laneGoal; i += size {
			move(lane(m[0]+i, head, uint8(m[1])), Mem{Base: work, Disp: m[0] + i})
		}
	}
	SUBQ(head, end)
	XORQ(head, head)
	JMP(LabelRef("cut"))
}

// loadState makes register i word i of sixteen blocks.
func loadState() {
	Load(Param("state"), reg.RAX)
	for i := range 16 {
		switch i {
		case 12:
			VMOVDQU32(lane(laneCtr, head, 4), zmm[i])
		case 14:
			VMOVDQU32(lane(laneN1, head, 4), zmm[i])
		case 15:
			VMOVDQU32(lane(laneN2, head, 4), zmm[i])
		default:
			VPBROADCASTD(Mem{Base: reg.RAX, Disp: 4 * i}, zmm[i])
		}
	}
}

// alone are the twenty rounds of a pass that has none before it.
func alone() {
	MOVQ(U32(10), reg.RCX)
	Label("rounds")
	doubleRound(func() {})
	DECQ(reg.RCX)
	JNZ(LabelRef("rounds"))
}

// interleaved is the twenty rounds with the end of the pass before them. The shuffles of that end
// keep one of the two vector ports busy, and the rounds load both evenly. So the steps of the end
// are distributed among the rounds.
func interleaved() {
	end := ending()
	n, done := 0, 0
	for range 10 {
		doubleRound(func() {
			n++
			for ; done < len(end) && done*10*96 < n*len(end); done++ {
				end[done]()
			}
		})
	}
	for _, step := range end[done:] {
		step()
	}
}

// doubleRound is a column round and a diagonal round (RFC 8439 2.3); between is called after each instruction.
func doubleRound(between func()) {
	quarters([4][4]int{{0, 4, 8, 12}, {1, 5, 9, 13}, {2, 6, 10, 14}, {3, 7, 11, 15}}, between)
	quarters([4][4]int{{0, 5, 10, 15}, {1, 6, 11, 12}, {2, 7, 8, 13}, {3, 4, 9, 14}}, between)
}

// quarters are four quarter rounds side by side (RFC 8439 2.1).
func quarters(q [4][4]int, between func()) {
	for _, step := range [][4]int{{0, 1, 3, 16}, {2, 3, 1, 12}, {0, 1, 3, 8}, {2, 3, 1, 7}} {
		for _, w := range q {
			VPADDD(zmm[w[step[1]]], zmm[w[step[0]]], zmm[w[step[0]]])
			between()
		}
		for _, w := range q {
			VPXORD(zmm[w[step[0]]], zmm[w[step[2]]], zmm[w[step[2]]])
			between()
		}
		for _, w := range q {
			VPROLD(U8(step[3]), zmm[w[step[2]]], zmm[w[step[2]]])
			between()
		}
	}
}

// spill adds the initial state and puts the pass by, with the addresses of its lanes: the next pass ends it.
func spill() {
	Load(Param("state"), reg.RAX)
	for i := range 16 {
		switch i {
		case 12:
			VPADDD(lane(laneCtr, head, 4), zmm[i], zmm[i])
		case 14:
			VPADDD(lane(laneN1, head, 4), zmm[i], zmm[i])
		case 15:
			VPADDD(lane(laneN2, head, 4), zmm[i], zmm[i])
		default:
			VPADDD_BCST(Mem{Base: reg.RAX, Disp: 4 * i}, zmm[i], zmm[i])
		}
		VMOVDQU32(zmm[i], spilt(i))
	}
	for i := range 2 {
		VMOVDQU64(lane(lanePtr+64*i, head, 8), zmm[16+i])
		VMOVDQU64(zmm[16+i], Mem{Base: work, Disp: waitPtr + 64*i})
	}
	MOVQ(U32(1), wait)
}

func spilt(i int) Mem { return Mem{Base: work, Disp: waitOut + 64*i} }

// ending is the rest of a pass, in registers 16 to 31. It turns words of sixteen blocks into
// blocks of sixteen words and adds each to its lane's 64 bytes. It first transposes squares of 4x4
// words, for an even and an odd r at a time. Then word[g] has words 4g to 4g+3 of blocks r, r+4,
// r+8 and r+12. Last, it transposes the squares themselves.
func ending() (steps []func()) {
	do := func(step func()) { steps = append(steps, step) }
	for half := range 2 {
		unpack := VPUNPCKLDQ
		if half == 1 {
			unpack = VPUNPCKHDQ
		}
		even, odd, t := zmm[16:20], zmm[20:24], zmm[24:32]
		for g := range 4 {
			t0, t1 := t[2*g], t[2*g+1]
			do(func() { VMOVDQU32(spilt(4*g), t0) })
			do(func() { VMOVDQU32(spilt(4*g+2), t1) })
			do(func() { unpack(spilt(4*g+1), t0, t0) })
			do(func() { unpack(spilt(4*g+3), t1, t1) })
			do(func() { VPUNPCKLQDQ(t1, t0, even[g]) })
			do(func() { VPUNPCKHQDQ(t1, t0, odd[g]) })
		}
		steps = append(steps, squares(even, t[:4], 2*half)...)
		steps = append(steps, squares(odd, t[4:], 2*half+1)...)
	}
	return steps
}

// squares makes blocks r, r+4, r+8 and r+12 of word and adds them.
func squares(word, t []reg.VecPhysical, r int) (steps []func()) {
	do := func(step func()) { steps = append(steps, step) }
	a, b, c, d := word[0], word[1], word[2], word[3]
	do(func() { VSHUFI32X4(U8(0x44), b, a, t[0]) })
	do(func() { VSHUFI32X4(U8(0x44), d, c, t[1]) })
	do(func() { VSHUFI32X4(U8(0xee), b, a, t[2]) })
	do(func() { VSHUFI32X4(U8(0xee), d, c, t[3]) })
	for i := range 4 {
		from, half := t[i/2*2:], U8(0x88)
		if i%2 == 1 {
			half = 0xdd
		}
		do(func() { VSHUFI32X4(half, from[1], from[0], word[i]) })
		do(func() { MOVQ(Mem{Base: work, Disp: waitPtr + 8*(r+4*i)}, reg.RAX) })
		do(func() { VPXORD(Mem{Base: reg.RAX}, word[i], word[i]) })
		do(func() { VMOVDQU32(word[i], Mem{Base: reg.RAX}) })
	}
	return steps
}

// drain ends the last pass.
func drain() {
	Label("drain")
	TESTQ(wait, wait)
	JZ(LabelRef("finish"))
	for _, step := range ending() {
		step()
	}
	VPXORD(reg.Z0, reg.Z0, reg.Z0)
	for i := range 16 {
		VMOVDQU32(reg.Z0, spilt(i))
	}
}

// finish hands out, and leaves no keystream in a register.
func finish(ones Mem) {
	wipe := func(m Mem) { VMOVDQU32(reg.Z1, m) }
	handOut(wipe, func() {
		VPXORD(reg.Z1, reg.Z1, reg.Z1)
		wipe(Mem{Base: work, Disp: junk})
	}, func() {
		BZHIQ(reg.RCX, ones, reg.R14)
		KMOVQ(reg.R14, reg.K1)
		textEnd()
		VMOVDQU32(Mem{Base: slot, Disp: slotTail}, reg.Z0)
		VMOVDQU8(reg.Z0, reg.K1, Mem{Base: reg.RAX})
	})
	for _, z := range zmm[16:] {
		VPXORD(z, z, z)
	}
	VZEROALL()
}

// handOut gives every job its key and the end of its text, and wipes the slots that had them. wipe clears 64 bytes,
// after prepare. tail copies the RCX last bytes of the text, 1 to 63, from the slot to the text, whose length is in RAX.
func handOut(wipe func(m Mem), prepare, tail func()) {
	Label("finish")
	Load(Param("jobs"), job)
	Load(Param("n"), left)
	Load(Param("what"), reg.RBX)
	LEAQ(Mem{Base: work, Disp: fixed}, slot)
	prepare()
	Label("each")
	TESTQ(left, left)
	JZ(LabelRef("done"))
	TESTQ(U32(1), reg.RBX)
	JZ(LabelRef("text"))
	VMOVDQU(Mem{Base: slot, Disp: slotKey}, reg.Y0)
	VMOVDQU(reg.Y0, Mem{Base: job, Disp: jobKey})
	wipe(Mem{Base: slot, Disp: slotKey})
	Label("text")
	TESTQ(U32(2), reg.RBX)
	JZ(LabelRef("given"))
	MOVQ(Mem{Base: job, Disp: jobN}, reg.RAX)
	MOVQ(reg.RAX, reg.RCX)
	ANDQ(U32(63), reg.RCX)
	JZ(LabelRef("given"))
	tail()
	wipe(Mem{Base: slot, Disp: slotTail})
	Label("given")
	ADDQ(U8(jobSize), job)
	ADDQ(U32(slotSize), slot)
	DECQ(left)
	JMP(LabelRef("each"))
	Label("done")
}

// textEnd turns RAX, the length of the job's text, into the address of the RCX last bytes.
func textEnd() {
	SUBQ(reg.RCX, reg.RAX)
	ADDQ(Mem{Base: job, Disp: jobText}, reg.RAX)
}
