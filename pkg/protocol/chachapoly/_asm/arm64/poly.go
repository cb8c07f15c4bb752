// SPDX-License-Identifier: Apache-2.0

package main

// Registers of Poly1305. R18, R27 and R28 belong to the platform, the assembler and the runtime.
const (
	mac  reg = "R3"
	data reg = "R4"
	r0   reg = "R5"
	r1   reg = "R6"
	s1   reg = "R7" // 5*r1/4, which is r1*2^128 modulo 2^130-5 because r1 is a multiple of 4
	h0   reg = "R8"
	h1   reg = "R9"
	h2   reg = "R10"
	one  reg = "R22"
	left reg = "R25"

	m0, m1     reg = "R11", "R12"
	d0, d1, d2 reg = "R13", "R14", "R15"
	t0, t1, t2 reg = "R16", "R17", "R19"
	t3, t4     reg = "R20", "R21"
)

// Where polyMAC's fields are.
const (
	macH0 = 0
	macH2 = 16
	macR0 = 24
)

// polyBlock does h = (h + block + 2^128) * r modulo 2^130-5, as polyMAC.block: h2 is at most 4 after it and 6 within.
//
// r0 is below 2^60 and s1 below 1.25*2^60, so the three terms of d1 before the first addition with
// carry, one of them h2*s1, stay below 2^64. The same holds for d2 and 5*d2/4.
func polyBlock(c *code) {
	c.op("LDP.P", offset(data, 16), pair(m0, m1))
	c.op("ADDS", m0, h0, h0)
	c.op("ADCS", m1, h1, h1)
	c.op("ADC", one, h2, h2)
	c.op("MUL", r0, h0, d0)
	c.op("UMULH", r0, h0, d1)
	c.op("MUL", s1, h1, t0)
	c.op("UMULH", s1, h1, t1)
	c.op("MUL", r1, h0, t2)
	c.op("UMULH", r1, h0, d2)
	c.op("MUL", r0, h1, t3)
	c.op("UMULH", r0, h1, t4)
	c.op("MADD", s1, t1, h2, t1)
	c.op("MADD", r0, d2, h2, d2)
	c.op("ADDS", t0, d0, d0)
	c.op("ADC", t1, d1, d1)
	c.op("ADDS", t3, t2, t2)
	c.op("ADC", t4, d2, d2)
	c.op("ADDS", t2, d1, d1)
	c.op("ADC", reg("ZR"), d2, d2)
	// The part above 2^130 counts five times: once times 4, in its position, and once times 1.
	c.op("AND", -4, d2, t0)
	c.op("ADD", shiftRight(d2, 2), t0, t0)
	c.op("AND", 3, d2, h2)
	c.op("ADDS", t0, d0, h0)
	c.op("ADCS", reg("ZR"), d1, h1)
	c.op("ADC", reg("ZR"), h2, h2)
}

func polyBlocks(n int) (c code) {
	for range n {
		polyBlock(&c)
	}
	return c
}

func pair(a, b reg) string { return "(" + string(a) + ", " + string(b) + ")" }

func (f *file) loadMAC() {
	f.op("LDP", offset(mac, macH0), pair(h0, h1))
	f.op("MOVD", offset(mac, macH2), h2)
	f.op("LDP", offset(mac, macR0), pair(r0, r1))
	f.op("ADD", shiftRight(r1, 2), r1, s1)
	f.op("MOVD", 1, one)
}

// storeMAC leaves nothing of a key in a register.
func (f *file) storeMAC() {
	f.op("STP", pair(h0, h1), offset(mac, macH0))
	f.op("MOVD", h2, offset(mac, macH2))
	for _, r := range []reg{r0, r1, s1, h0, h1, h2, d0, d1, d2, t0, t1, t2, t3, t4} {
		f.op("MOVD", reg("ZR"), r)
	}
}

// macBlocks authenticates whole blocks.
func (f *file) macBlocks() {
	f.function("macBlocks", "(mac *polyMAC, data *byte, blocks int)", arg{"mac", mac}, arg{"data", data}, arg{"blocks", left})
	f.loadMAC()
	f.label("block")
	var c code
	polyBlock(&c)
	f.put(c)
	f.op("SUB", 1, left)
	f.op("CBNZ", left, "block")
	f.storeMAC()
	f.op("RET")
}
