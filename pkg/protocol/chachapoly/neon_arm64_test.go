// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/crypto/chacha20"
)

// eachKernel runs a test for the kernels that this CPU runs.
func eachKernel(t *testing.T, test func(t *testing.T, k kernel)) {
	for k, has := range map[kernel]bool{kernelNEON: hasNEON(), kernelSVE2: hasSVE2()} {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			if !has {
				t.Skip("the CPU lacks the instructions")
			}
			test(t, k)
		})
	}
}

func TestStreamMatchesXCryptoInEveryLane(t *testing.T) {
	eachKernel(t, func(t *testing.T, k kernel) {
		r := rand.New(rand.NewPCG(31, 31))
		key := randomKey(r)
		c, s := mustKey(t, generic, key), new(Scratch)
		for passes := 1; passes <= laneGroups; passes++ {
			v := &s.vector
			for i := range 4 * passes {
				g := &v.lanes[i/4]
				g.counter[i%4], g.lo[i%4], g.hi[i%4] = r.Uint32()>>8, r.Uint32(), r.Uint32()
			}
			v.state = c.secret.state
			k.stream(v, passes)
			for i := range 4 * passes {
				g := &v.lanes[i/4]
				want := keystream(t, key, uint64(g.lo[i%4])|uint64(g.hi[i%4])<<32, g.counter[i%4], 64)
				if got := v.stream[64*i:][:64]; !bytes.Equal(got, want) {
					t.Fatalf("%d passes, block %d: got keystream %x, want %x", passes, i, got, want)
				}
			}
		}
	})
}

// keystream is what x/crypto adds to zeros.
func keystream(t *testing.T, key *[KeyLen]byte, nonce uint64, counter uint32, n int) []byte {
	t.Helper()
	c, err := chacha20.NewUnauthenticatedCipher(key[:], binary.LittleEndian.AppendUint64(make([]byte, 4), nonce))
	if err != nil {
		t.Fatal(err)
	}
	c.SetCounter(counter)
	b := make([]byte, n)
	c.XORKeyStream(b, b)
	return b
}

func TestXorMatchesXCryptoFromEveryCounter(t *testing.T) {
	eachKernel(t, func(t *testing.T, k kernel) {
		r := rand.New(rand.NewPCG(32, 32))
		key := randomKey(r)
		c, s := mustKey(t, generic, key), new(Scratch)
		for passes := 1; passes <= 20; passes++ {
			text, nonce, counter := randomBytes(r, passes*passLen), r.Uint64(), r.Uint32()>>4
			want := keystream(t, key, nonce, counter, len(text))
			for i := range want {
				want[i] ^= text[i]
			}
			s.vector.state = c.secret.state
			s.vector.state[12], s.vector.state[14], s.vector.state[15] = counter, uint32(nonce), uint32(nonce>>32)
			k.xor(&s.vector, text, passes)
			if !bytes.Equal(text, want) {
				t.Fatalf("%d passes from counter %d: got wrong text", passes, counter)
			}
		}
	})
}

func TestWovenKernelMatchesSeparateOnes(t *testing.T) {
	eachKernel(t, func(t *testing.T, k kernel) {
		r := rand.New(rand.NewPCG(33, 33))
		s := new(Scratch)
		for _, fill := range polyFills {
			for passes := 1; passes <= 6; passes++ {
				j, text := fill.job(passes*passLen), randomBytes(r, passes*passLen)
				want, wantMAC := bytes.Clone(text), newPolyMAC(&j.key)
				for i := range s.vector.state {
					s.vector.state[i] = r.Uint32()
				}
				k.xor(&s.vector, want, passes)
				oracleBlocks(wantMAC, j.bytes())
				w := work{text: j.bytes(), mac: *newPolyMAC(&j.key)}
				k.xorMAC(&s.vector, text, passes, &w)
				if !bytes.Equal(text, want) {
					t.Fatalf("%s, %d passes: got a text that differs from the other kernel's", fill.name, passes)
				}
				if got, want := macTag(&w.mac), macTag(wantMAC); got != want {
					t.Fatalf("%s, %d passes: got tag %x, want %x", fill.name, passes, got, want)
				}
			}
		}
	})
}

func oracleBlocks(m *polyMAC, text []byte) {
	for b := range slices.Chunk(text, 16) {
		m.block(binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:]), 1)
	}
}

func macTag(m *polyMAC) (tag [TagLen]byte) {
	m.tag(&tag)
	return tag
}

func TestAssemblyMACMatchesGenericOne(t *testing.T) {
	for _, fill := range polyFills {
		for blocks := 1; blocks <= 200; blocks++ {
			j := fill.job(16 * blocks)
			want, got := newPolyMAC(&j.key), newPolyMAC(&j.key)
			oracleBlocks(want, j.bytes())
			macBlocks(got, j.text, blocks)
			if macTag(got) != macTag(want) {
				t.Fatalf("%s, %d blocks: got tag %x, want %x", fill.name, blocks, macTag(got), macTag(want))
			}
		}
	}
}

// TestAssemblyMACAcceptsLargestState starts from what is above any state that a block leaves.
func TestAssemblyMACAcceptsLargestState(t *testing.T) {
	key := [32]byte(bytes.Repeat([]byte{0xff}, 32))
	text := bytes.Repeat([]byte{0xff}, 64)
	for h2 := range uint64(8) {
		got := newPolyMAC(&key)
		got.h0, got.h1, got.h2 = ^uint64(0), ^uint64(0), h2
		want := *got
		macBlocks(got, &text[0], len(text)/16)
		oracleBlocks(&want, text)
		if macTag(got) != macTag(&want) {
			t.Errorf("h2 = %d: got tag %x, want %x", h2, macTag(got), macTag(&want))
		}
	}
}

func TestWorksMatchDefinitionOnRFCInputs(t *testing.T) {
	for _, v := range polyVectors {
		var j polyJob
		j.key = [32]byte(polyUnhex(t, v.key))
		j.setText(polyUnhex(t, v.text))
		w := work{text: j.bytes(), mac: *newPolyMAC(&j.key)}
		w.macRest(0)
		if got, want := macTag(&w.mac), polyTagBig(&j); got != want {
			t.Errorf("%s: got tag %x, want %x", v.name, got, want)
		}
	}
}

func TestAssemblyMatchesMACLayout(t *testing.T) {
	checkLayout[polyMAC](t, 0, layout{"h0": 0, "h1": 8, "h2": 16, "r0": 24, "r1": 32})
	checkLayout[laneGroup](t, 48, layout{"counter": 0, "lo": 16, "hi": 32})
}
