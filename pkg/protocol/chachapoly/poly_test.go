// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// polyVectors are those of RFC 8439, section 2.5.2 and appendix A.3.
var polyVectors = []struct{ name, key, text, tag string }{
	{
		"2.5.2", "85d6be7857556d337f4452fe42d506a80103808afb0db2fd4abff6af4149f51b",
		hex.EncodeToString([]byte("Cryptographic Forum Research Group")), "a8061dc1305136c6c22b8baf0c0127a9",
	},
	{"A.3 1", polyZeros + polyZeros, polyZeros + polyZeros + polyZeros + polyZeros, polyZeros},
	{"A.3 2", polyZeros + "36e5f6b5c5e06070f0efca96227a863e", polyIETF, "36e5f6b5c5e06070f0efca96227a863e"},
	{"A.3 3", "36e5f6b5c5e06070f0efca96227a863e" + polyZeros, polyIETF, "f3477e7cd95417af89a6b8794c310cf0"},
	{"A.3 4", "1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0", hex.EncodeToString([]byte("'Twas brillig, and the slithy toves\n" +
		"Did gyre and gimble in the wabe:\nAll mimsy were the borogoves,\nAnd the mome raths outgrabe.")), "4541669a7eaaee61e708dc7cbcc5eb62"},
	{"A.3 5", "02" + polyZeros[2:] + polyZeros, polyOnes, "03" + polyZeros[2:]},
	{"A.3 6", "02" + polyZeros[2:] + polyOnes, "02" + polyZeros[2:], "03" + polyZeros[2:]},
	{"A.3 7", "01" + polyZeros[2:] + polyZeros, polyOnes + "f0" + polyOnes[2:] + "11" + polyZeros[2:], "05" + polyZeros[2:]},
	{"A.3 8", "01" + polyZeros[2:] + polyZeros, polyOnes + "fbfefefefefefefefefefefefefefefe" + "01010101010101010101010101010101", polyZeros},
	{"A.3 9", "02" + polyZeros[2:] + polyZeros, "fd" + polyOnes[2:], "fa" + polyOnes[2:]},
	{"A.3 10", "01000000000000000400000000000000" + polyZeros, "e33594d7505e43b900000000000000003394d7505e4379cd01000000000000000000000000000000" +
		"000000000000000001000000000000000000000000000000", "14000000000000005500000000000000"},
	{"A.3 11", "01000000000000000400000000000000" + polyZeros, "e33594d7505e43b900000000000000003394d7505e4379cd01000000000000000000000000000000" +
		"0000000000000000", "13" + polyZeros[2:]},
}

const (
	polyZeros = "00000000000000000000000000000000"
	polyOnes  = "ffffffffffffffffffffffffffffffff"
)

var polyIETF = hex.EncodeToString([]byte(`Any submission to the IETF intended by the Contributor for publication as all or part of an IETF ` +
	`Internet-Draft or RFC and any statement made within the context of an IETF activity is considered an "IETF Contribution". ` +
	`Such statements include oral statements in IETF sessions, as well as written and electronic communications made at any time ` +
	`or place, which are addressed to`))

func TestPoly1305MatchesRFC8439(t *testing.T) {
	for _, v := range polyVectors {
		t.Run(v.name, func(t *testing.T) {
			text := polyUnhex(t, v.text)
			m := newPolyMAC((*[32]byte)(polyUnhex(t, v.key)))
			for ; len(text) > 0; text = text[min(16, len(text)):] {
				var block [17]byte
				block[copy(block[:16], text)] = 1
				m.block(binary.LittleEndian.Uint64(block[:]), binary.LittleEndian.Uint64(block[8:]), uint64(block[16]))
			}
			lo, hi := m.sum()
			got := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, lo), hi)
			if want := polyUnhex(t, v.tag); !bytes.Equal(got, want) {
				t.Errorf("got tag %x, want %x", got, want)
			}
		})
	}
}

func polyUnhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGenericTagMatchesBigInt(t *testing.T) {
	for _, fill := range polyFills {
		for n := range 300 {
			j := fill.job(n)
			polyTagGeneric(&j)
			if want := polyTagBig(&j); j.tag != want {
				t.Fatalf("%s, %d bytes: got tag %x, want %x", fill.name, n, j.tag, want)
			}
		}
	}
}

func TestGenericTagAtModulus(t *testing.T) {
	for _, j := range polyNearModulus() {
		polyTagGeneric(&j)
		if want := polyTagBig(&j); j.tag != want {
			t.Errorf("got tag %x, want %x", j.tag, want)
		}
	}
}

// polyTagBig is the definition, with numbers of any size.
func polyTagBig(j *polyJob) (tag [16]byte) {
	p := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 130), big.NewInt(5))
	clamp, _ := new(big.Int).SetString("0ffffffc0ffffffc0ffffffc0fffffff", 16)
	r := littleEndian(j.key[:16])
	r.And(r, clamp)
	text := bytes.Clone(j.bytes())
	text = append(text, make([]byte, -len(text)&15)...)
	text = binary.LittleEndian.AppendUint64(text, 0)
	text = binary.LittleEndian.AppendUint64(text, uint64(j.n))
	h := new(big.Int)
	for b := range slices.Chunk(text, 16) {
		h.Add(h, littleEndian(append(bytes.Clone(b), 1)))
		h.Mod(h.Mul(h, r), p)
	}
	h.Add(h, littleEndian(j.key[16:]))
	sum := h.FillBytes(make([]byte, 32))
	slices.Reverse(sum)
	return [16]byte(sum)
}

func littleEndian(b []byte) *big.Int {
	b = bytes.Clone(b)
	slices.Reverse(b)
	return new(big.Int).SetBytes(b)
}

// polyFill makes texts and keys.
type polyFill struct {
	name      string
	text, key func() byte
}

var polyFills = func() []polyFill {
	rng := rand.New(rand.NewPCG(8439, 1305))
	random := func() byte { return byte(rng.Uint32()) }
	ones := func() byte { return 0xff }
	zeros := func() byte { return 0 }
	return []polyFill{
		{"random", random, random},
		{"all ones", ones, ones},
		{"ones in text", ones, random},
		{"ones in key", random, ones},
		{"zeros in text", zeros, random},
		{"zeros in key", random, zeros},
	}
}()

func (f *polyFill) job(n int) (j polyJob) {
	for i := range j.key {
		j.key[i] = f.key()
	}
	text := make([]byte, n)
	for i := range text {
		text[i] = f.text()
	}
	j.setText(text)
	return j
}

func (j *polyJob) setText(text []byte) {
	j.text, j.n = nil, len(text)
	if j.n > 0 {
		j.text = &text[0]
	}
}

// polyNearModulus makes jobs with r = 1 of which the sum is 2^130-5 and up to seven more or less: with r = 1 it is the sum of
// the blocks, 3*2^128 and (32<<64), so that two blocks bring it there.
func polyNearModulus() (jobs []polyJob) {
	for x := uint64(0); x < 15; x++ {
		text := bytes.Repeat([]byte{0xff}, 32)
		binary.LittleEndian.PutUint64(text, ^uint64(0)-11)
		binary.LittleEndian.PutUint64(text[8:], ^uint64(0)-32)
		binary.LittleEndian.PutUint64(text[16:], x)
		binary.LittleEndian.PutUint64(text[24:], 0)
		j := polyJob{key: [32]byte{1}}
		j.setText(text)
		jobs = append(jobs, j)
	}
	return jobs
}
