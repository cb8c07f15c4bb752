// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/ropewalk/ropewalk/test/guardpage"
)

// TestPassesAuthenticateUnitsOfRuns takes texts at both ends of memory between two pages that fault.
func TestPassesAuthenticateUnitsOfRuns(t *testing.T) {
	if !hasAVX2() {
		t.Skip("the CPU lacks AVX2 or BMI2")
	}
	const size = 2 * 4096
	memory, r := guardpage.Map(t, size), rand.New(rand.NewPCG(15, 15))
	copy(memory, randomBytes(r, size))
	k := mustKey(t, generic, randomKey(r))
	for range 300 {
		passes, s := r.IntN(6), new(vectorScratch)
		runs, macs := make([]macRun, 1+r.IntN(maxGroup)), make([]polyMAC, maxGroup)
		for i := range runs {
			macs[i].setKey((*[32]byte)(randomBytes(r, 32)))
			runs[i] = macRun{&macs[i], &memory[0], 1 + r.IntN(size/macUnit)}
			if i%2 == 1 {
				runs[i].text = &memory[size-runs[i].units*macUnit]
			}
		}
		before, want := append([]macRun{}, runs...), append([]polyMAC{}, macs...)
		jobs := []polyJob{benchJobs(1, 1024*passes+64*r.IntN(8))[0]} // whole passes, and less than half a one
		chachaLanes256(&k.secret.state, &jobs[0], &s.nonces[0], 1, wantText, &s.area[0], &runs[0], len(runs))
		left := 10 * passes // one unit in each double round
		for i, b := range before {
			done := min(left, b.units)
			left -= done
			if runs[i].units != b.units-done {
				t.Fatalf("run %d of %d: got %d of %d units left, want %d", i, len(runs), runs[i].units, b.units, b.units-done)
			}
			at := 0
			if i%2 == 1 {
				at = size - b.units*macUnit
			}
			blocks(&want[i], memory[at:at+done*macUnit])
			if macs[i] != want[i] {
				t.Fatalf("run %d of %d: the sum of %d units differs from that block by block", i, len(runs), done)
			}
		}
		if len(bytes.Trim(s.area[4480+63:4480+1152], "\x00")) > 0 { // waitOut and waitPtr in _asm/chacha.go
			t.Fatal("got words or a key in the work area, want zeros")
		}
	}
}

func blocks(m *polyMAC, text []byte) {
	for ; len(text) > 0; text = text[16:] {
		lo, hi := littleEndian(text[:8]).Uint64(), littleEndian(text[8:16]).Uint64()
		m.block(lo, hi, 1)
	}
}
