// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
)

// vec is one of the 32 vector registers, reg a general one by its name in Go's assembler.
type (
	vec int
	reg string
)

func (v vec) s4() string  { return fmt.Sprintf("V%d.S4", v) }
func (v vec) d2() string  { return fmt.Sprintf("V%d.D2", v) }
func (v vec) b16() string { return fmt.Sprintf("V%d.B16", v) }
func (v vec) h8() string  { return fmt.Sprintf("V%d.H8", v) }
func (v vec) q() string   { return fmt.Sprintf("F%d", v) }

func s4s(list ...vec) string {
	var names []string
	for _, v := range list {
		names = append(names, v.s4())
	}
	return "[" + strings.Join(names, ", ") + "]"
}

func quads(a, b vec) string { return "(" + a.q() + ", " + b.q() + ")" }

// b16s is four registers from the first on.
func b16s(first vec) string {
	return fmt.Sprintf("[V%d.B16, V%d.B16, V%d.B16, V%d.B16]", first, first+1, first+2, first+3)
}

// code is a sequence of instructions without branches.
type code []string

func (c *code) op(name string, operands ...any) {
	var list []string
	for _, o := range operands {
		if n, ok := o.(int); ok {
			o = fmt.Sprintf("$%d", n)
		}
		list = append(list, fmt.Sprint(o))
	}
	*c = append(*c, name+"\t"+strings.Join(list, ", "))
}

// weave distributes the instructions of b evenly among the instructions of a. The two must share
// no register, and only one may use the flags.
func weave(a, b code) (woven code) {
	done := 0
	for i, instruction := range a {
		woven = append(woven, instruction)
		for ; done*len(a) < (i+1)*len(b); done++ {
			woven = append(woven, b[done])
		}
	}
	return woven
}

// file is the assembly file.
type file struct{ text bytes.Buffer }

func (f *file) raw(line string)   { f.text.WriteString(line + "\n") }
func (f *file) label(name string) { f.raw(name + ":") }

func (f *file) op(name string, operands ...any) {
	var c code
	c.op(name, operands...)
	f.put(c)
}

func (f *file) put(c code) {
	for _, instruction := range c {
		f.raw("\t" + instruction)
	}
}

// function begins a function and loads its arguments, eight bytes each.
func (f *file) function(name, signature string, args ...arg) {
	f.raw("")
	f.raw("// func " + name + signature)
	f.raw(fmt.Sprintf("TEXT ·%s(SB), NOSPLIT, $0-%d", name, 8*len(args)))
	for i, a := range args {
		f.op("MOVD", fmt.Sprintf("%s+%d(FP)", a.name, 8*i), a.to)
	}
}

type arg struct {
	name string
	to   reg
}

func (f *file) table(name string, lo, hi uint64) {
	f.raw("")
	f.raw(fmt.Sprintf("DATA %s<>+0(SB)/8, $0x%016x", name, lo))
	f.raw(fmt.Sprintf("DATA %s<>+8(SB)/8, $0x%016x", name, hi))
	f.raw(fmt.Sprintf("GLOBL %s<>(SB), RODATA|NOPTR, $16", name))
}

func (f *file) loadTable(name string, v vec) {
	f.op("MOVD", "$"+name+"<>(SB)", position)
	f.op("VLD1", at(position), "["+v.b16()+"]")
}

func at(r reg) string                { return fmt.Sprintf("(%s)", r) }
func offset(r reg, bytes int) string { return fmt.Sprintf("%d(%s)", bytes, r) }
func shiftRight(r reg, n int) string { return fmt.Sprintf("%s>>%d", r, n) }
