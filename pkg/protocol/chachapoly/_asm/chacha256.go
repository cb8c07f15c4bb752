// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// A pass of chachaLanes256 takes sixteen lanes as two sets of eight, a vector for each word of a
// set. The vectors are in waitOut. A double round of one set loads them into the registers and
// stores them, while the CPU still works on the other set's double round. One set alone leaves
// ports idle where vector operations take two cycles.

var ymm = []reg.VecPhysical{
	reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
}

func chacha256() {
	ConstraintExpr("!purego")
	iota32, iota64, shuffles := constants256()
	TEXT("chachaLanes256", NOSPLIT, strings.TrimSuffix(chachaSignature, ")")+", runs *byte, count int)")
	start()
	startRuns()
	gather(cutter{
		many: func() { write256(16, iota32, iota64) },
		few:  func() { write256(4, iota32, iota64) },
		tail: tail256,
	})
	run256(shuffles)
	finish256()
	RET()
}

// constants256 are the numbers and byte shuffles that rotate words by 16 and 8 bits to the left.
func constants256() (words, offsets, shuffles Mem) {
	words, offsets = numbers("iota32x8", "offsets64x4")
	shuffles = GLOBL("rotations", RODATA|NOPTR)
	for i := range 8 {
		DATA(8*i, U64(rotation(i%2, 2-i/4)))
	}
	return words, offsets, shuffles
}

// rotation is the half of a byte shuffle that rotates words to the left by some bytes.
func rotation(half, bytes int) (v uint64) {
	for b := range 8 {
		v |= uint64(8*half+b&^3+(b-bytes)&3) << (8 * b)
	}
	return v
}

// write256 writes n lanes of the present job.
func write256(n int, iota32, iota64 Mem) {
	VMOVQ(text, reg.X3)
	VPBROADCASTQ(reg.X3, reg.Y3)
	for i := 0; i < n; i += 4 {
		VPADDQ(iota64.Offset(8*i), reg.Y3, reg.Y4)
		VMOVDQU(reg.Y4, lane(lanePtr+8*i, end, 8))
	}
	VMOVD(ctr.As32(), reg.X0)
	VPBROADCASTD(reg.X0, reg.Y0)
	VPBROADCASTD(Mem{Base: nonce, Disp: -8}, reg.Y1)
	VPBROADCASTD(Mem{Base: nonce, Disp: -4}, reg.Y2)
	for i := 0; i < n; i += 8 {
		VPADDD(iota32.Offset(4*i), reg.Y0, reg.Y4)
		store := func(y reg.VecPhysical, array int) {
			if n < 8 {
				VMOVDQU(y.AsX(), lane(array+4*i, end, 4))
				return
			}
			VMOVDQU(y, lane(array+4*i, end, 4))
		}
		store(reg.Y4, laneCtr)
		store(reg.Y1, laneN1)
		store(reg.Y2, laneN2)
	}
}

func tail256() {
	MOVQ(full, reg.R13)
	SHLQ(U8(6), reg.R13)
	ADDQ(text, reg.R13)
	ADDQ(U8(slotTail), slot)
	copyBytes("in", reg.R13, slot, reg.R14, 32)
	SUBQ(U8(slotTail), slot)
	SUBQ(reg.R14, slot)
}

// copyBytes copies n bytes, fewer than twice most, and moves both pointers behind them.
func copyBytes(name string, from, to, n reg.GPPhysical, most int) {
	for size := most; size > 0; size /= 2 {
		done := name + strconv.Itoa(size)
		TESTQ(U32(size), n)
		JZ(LabelRef(done))
		src, dst := Mem{Base: from}, Mem{Base: to}
		switch size {
		case 32:
			VMOVDQU(src, reg.Y0)
			VMOVDQU(reg.Y0, dst)
		case 16:
			VMOVDQU(src, reg.X0)
			VMOVDQU(reg.X0, dst)
		case 8:
			VMOVQ(src, reg.X0)
			VMOVQ(reg.X0, dst)
		case 4:
			VMOVD(src, reg.X0)
			VMOVD(reg.X0, dst)
		case 2:
			VPINSRW(U8(0), src, reg.X0, reg.X0)
			VPEXTRW(U8(0), reg.X0, dst)
		case 1:
			VPINSRB(U8(0), src, reg.X0, reg.X0)
			VPEXTRB(U8(0), reg.X0, dst)
		}
		if size > 1 {
			ADDQ(U8(size), from)
			ADDQ(U8(size), to)
		} else {
			INCQ(from)
			INCQ(to)
		}
		Label(done)
	}
}

// run256 takes sixteen lanes. When no job is left, junk fills them up, and eight or fewer take the first set alone.
func run256(shuffles Mem) {
	fillUp("finish", func() {
		VMOVQ(reg.RCX, reg.X0)
		VPBROADCASTQ(reg.X0, reg.Y0)
		for i := 0; i < 16; i += 4 {
			VMOVDQU(reg.Y0, lane(lanePtr+8*i, end, 8))
		}
	})
	CMPQ(reg.RAX, U8(8))
	JBE(LabelRef("half"))
	Label("full")
	pass256("both", shuffles, 0, 1)
	ADDQ(U8(16), head)
	JMP(LabelRef("gather"))
	Label("half")
	pass256("one", shuffles, 0)
	JMP(LabelRef("finish"))
	turn(32, func(from, to Mem) {
		VMOVDQU(from, reg.Y0)
		VMOVDQU(reg.Y0, to)
	})
}

// pass256 runs ChaCha20 over one or both sets of lanes.
func pass256(name string, shuffles Mem, sets ...int) {
	Load(Param("state"), reg.RAX)
	for i := range 16 {
		for _, set := range sets {
			initial256(i, set, reg.Y0)
			VMOVDQU(reg.Y0, word256(i, set))
		}
	}
	MOVQ(U32(10), reg.RCX)
	if len(sets) == 2 {
		fused256(shuffles, name, name+"Done")
	}
	Label(name)
	for _, set := range sets {
		doubleRound256(set, shuffles, func() {})
	}
	DECQ(reg.RCX)
	JNZ(LabelRef(name))
	Label(name + "Done")
	Load(Param("state"), reg.RAX)
	for _, set := range sets {
		ending256(set, 0)
		ending256(set, 8)
	}
}

func word256(i, set int) Mem { return Mem{Base: work, Disp: waitOut + 64*i + 32*set} }

// initial256 loads word i of the initial state.
func initial256(i, set int, y reg.VecPhysical) {
	switch i {
	case 12:
		VMOVDQU(lane(laneCtr+32*set, head, 4), y)
	case 14:
		VMOVDQU(lane(laneN1+32*set, head, 4), y)
	case 15:
		VMOVDQU(lane(laneN2+32*set, head, 4), y)
	default:
		VPBROADCASTD(Mem{Base: reg.RAX, Disp: 4 * i}, y)
	}
}

// quarter is a quarter round (RFC 8439 2.1): its words and the registers that hold them.
type quarter struct {
	words      [4]int
	a, b, c, d reg.VecPhysical
}

// doubleRound256 is a column round and a diagonal round of a set, two quarter rounds side by side. Registers hold the
// words but 8 to 11, of which two are in memory at a time. between is called after every two instructions of the rounds.
func doubleRound256(set int, shuffles Mem, between func()) {
	quarters := func(words ...[4]int) (q []quarter) {
		for i, w := range words {
			q = append(q, quarter{w, ymm[w[0]], ymm[w[1]], ymm[12+i], ymm[w[3]-4]})
		}
		return q
	}
	for i := 4; i < 8; i++ {
		VMOVDQU(word256(i, set), ymm[i])
	}
	column0 := quarters([4]int{0, 4, 8, 12}, [4]int{1, 5, 9, 13})
	column2 := quarters([4]int{2, 6, 10, 14}, [4]int{3, 7, 11, 15})
	diagonal0 := quarters([4]int{0, 5, 10, 15}, [4]int{1, 6, 11, 12})
	diagonal2 := quarters([4]int{2, 7, 8, 13}, [4]int{3, 4, 9, 14})
	at := func(i int) Op { return word256(i, set) }
	none := func(int) Op { return nil }
	quarters256(shuffles, column0, at, at, between)
	for _, q := range column0 {
		VMOVDQU(q.c, word256(q.words[2], set))
	}
	quarters256(shuffles, column2, at, at, between)
	quarters256(shuffles, diagonal0, none, none, between)
	for _, q := range diagonal0 {
		VMOVDQU(q.c, word256(q.words[2], set))
	}
	quarters256(shuffles, diagonal2, none, at, between)
	for _, q := range append(diagonal0, diagonal2...) {
		VMOVDQU(q.a, word256(q.words[0], set))
		VMOVDQU(q.b, word256(q.words[1], set))
		VMOVDQU(q.d, word256(q.words[3], set))
	}
	for _, q := range diagonal2 {
		VMOVDQU(q.c, word256(q.words[2], set))
	}
}

// quarters256 are two quarter rounds. ad and c say where their words are when they are not in their registers.
func quarters256(shuffles Mem, q []quarter, ad, c func(int) Op, between func()) {
	each := func(step func(q quarter, t reg.VecPhysical)) {
		for i := range q {
			step(q[i], ymm[14+i])
		}
		between()
	}
	or := func(m Op, r reg.VecPhysical) Op {
		if m == nil {
			return r
		}
		return m
	}
	rotate := func(bits uint8) {
		each(func(q quarter, t reg.VecPhysical) { VPSLLD(U8(bits), q.b, t) })
		each(func(q quarter, _ reg.VecPhysical) { VPSRLD(U8(32-bits), q.b, q.b) })
		each(func(q quarter, t reg.VecPhysical) { VPOR(t, q.b, q.b) })
	}
	each(func(q quarter, _ reg.VecPhysical) { VPADDD(or(ad(q.words[0]), q.a), q.b, q.a) })
	each(func(q quarter, _ reg.VecPhysical) { VPXOR(or(ad(q.words[3]), q.d), q.a, q.d) })
	each(func(q quarter, _ reg.VecPhysical) { VPSHUFB(shuffles, q.d, q.d) })
	each(func(q quarter, _ reg.VecPhysical) { VPADDD(or(c(q.words[2]), q.c), q.d, q.c) })
	each(func(q quarter, _ reg.VecPhysical) { VPXOR(q.c, q.b, q.b) })
	rotate(12)
	each(func(q quarter, _ reg.VecPhysical) { VPADDD(q.b, q.a, q.a) })
	each(func(q quarter, _ reg.VecPhysical) { VPXOR(q.a, q.d, q.d) })
	each(func(q quarter, _ reg.VecPhysical) { VPSHUFB(shuffles.Offset(32), q.d, q.d) })
	each(func(q quarter, _ reg.VecPhysical) { VPADDD(q.d, q.c, q.c) })
	each(func(q quarter, _ reg.VecPhysical) { VPXOR(q.c, q.b, q.b) })
	rotate(7)
}

// ending256 adds the initial state to words first to first+7 of a set, and turns them into half
// blocks. It adds each half block to its half of the lane's 64 bytes.
func ending256(set, first int) {
	w, t := ymm[:8], ymm[8:]
	for i := range 8 {
		initial256(first+i, set, t[0])
		VPADDD(word256(first+i, set), t[0], w[i])
	}
	for i := 0; i < 8; i += 2 {
		VPUNPCKLDQ(w[i+1], w[i], t[i])
		VPUNPCKHDQ(w[i+1], w[i], t[i+1])
	}
	// w[r] and w[r+4] get words 0 to 3 and 4 to 7 of blocks r and r+4.
	for half := 0; half < 8; half += 4 {
		for i := range 2 {
			VPUNPCKLQDQ(t[half+2+i], t[half+i], w[half+2*i])
			VPUNPCKHQDQ(t[half+2+i], t[half+i], w[half+2*i+1])
		}
	}
	for r := range 8 {
		VPERM2I128(U8([]uint8{0x20, 0x31}[r/4]), w[r%4+4], w[r%4], t[r%4])
		MOVQ(lane(lanePtr+8*(8*set+r), head, 8), reg.RCX)
		block := Mem{Base: reg.RCX, Disp: 4 * first}
		VPXOR(block, t[r%4], t[r%4])
		VMOVDQU(t[r%4], block)
	}
}

// finish256 hands out, and wipes the words, the runs' key and the registers.
func finish256() {
	handOut(wipe64, func() {
		VPXOR(reg.Y1, reg.Y1, reg.Y1)
		for at := waitOut; at < junk; at += 32 {
			VMOVDQU(reg.Y1, Mem{Base: work, Disp: at})
		}
		wipe64(Mem{Base: work, Disp: junk})
	}, func() {
		textEnd()
		LEAQ(Mem{Base: slot, Disp: slotTail}, reg.R14)
		copyBytes("out", reg.R14, reg.RAX, reg.RCX, 32)
	})
	for _, r := range []reg.GPPhysical{reg.R13, reg.R14} { // products of Poly1305; restore overwrote the others
		XORQ(r, r)
	}
	VZEROALL()
}

func wipe64(m Mem) {
	VMOVDQU(reg.Y1, m)
	VMOVDQU(reg.Y1, m.Offset(32))
}
