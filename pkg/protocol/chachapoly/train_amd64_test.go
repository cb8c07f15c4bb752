// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/crypto/chacha20"
	"golang.org/x/sys/cpu"
)

// eachVector runs a test for every vector implementation that this CPU supports.
func eachVector(t *testing.T, test func(t *testing.T, i *implementation, c *trainCipher)) {
	t.Helper()
	for name, c := range map[string]*trainCipher{AVX512: train512, AVX2: &train256.trainCipher} {
		t.Run(name, func(t *testing.T) {
			at := slices.Index(supported(), name)
			if at < 0 {
				t.Skipf("this CPU does not support %s", name)
			}
			test(t, implementations()[at], c)
		})
	}
}

func TestFallsBackWithoutRequiredCPUFeature(t *testing.T) {
	for name, flags := range map[string]map[string]*bool{
		AVX512: {
			"AVX512F": &cpu.X86.HasAVX512F, "AVX512BW": &cpu.X86.HasAVX512BW, "AVX512DQ": &cpu.X86.HasAVX512DQ, "AVX512VL": &cpu.X86.HasAVX512VL,
			"AVX512VBMI2": &cpu.X86.HasAVX512VBMI2, "AVX512IFMA": &cpu.X86.HasAVX512IFMA, "BMI2": &cpu.X86.HasBMI2,
		},
		AVX2: {"AVX2": &cpu.X86.HasAVX2, "BMI2": &cpu.X86.HasBMI2},
	} {
		for flag, has := range flags {
			t.Run(name+"/"+flag, func(t *testing.T) {
				was := *has
				t.Cleanup(func() { *has = was })
				*has = false
				list, failed := checked(vectorImplementations)
				for _, i := range list {
					if i.name == name {
						t.Errorf("got %s without the CPU flag, want it left out", name)
					}
				}
				if slices.Contains(failed, name) {
					t.Errorf("got a failed self-test of %s without the CPU flag, want none", name)
				}
			})
		}
	}
}

func TestFallsBackWhenSelfTestFails(t *testing.T) {
	wrong := func(last bool) *implementation {
		return &implementation{name: "wrong", seal: sealEach, open: func(k *secret, s *Scratch, msgs []Message) {
			openEach(k, s, msgs)
			msgs[len(msgs)-1].Valid = last
		}}
	}
	if !selfTest(wrong(true)) {
		t.Error("selfTest of a correct implementation = false, want true")
	}
	if selfTest(wrong(false)) {
		t.Error("selfTest of an implementation that opens wrongly = true, want false")
	}
	i := wrong(true)
	i.seal = func(*secret, *Scratch, []Message) {}
	if selfTest(i) {
		t.Error("selfTest of an implementation that does not seal = true, want false")
	}
}

func TestSelfTestReachesFusedKernel(t *testing.T) {
	groups := 0
	selfTest(&implementation{
		seal: func(k *secret, s *Scratch, msgs []Message) { groups = groupLen(msgs); sealEach(k, s, msgs) },
		open: openEach,
	})
	if groups == 0 {
		t.Error("the self-test's messages are not taken in groups, want them to be")
	}
}

func TestOneTimeKeysMatchRFC8439(t *testing.T) { eachVector(t, oneTimeKeys) }

func oneTimeKeys(t *testing.T, _ *implementation, c *trainCipher) {
	for _, v := range []struct{ name, key, nonce, want string }{
		{
			"2.6.2", "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f", "000000000001020304050607",
			"8ad5a08b905f81cc815040274ab29471a833b637e3fd0da508dbb8e2fdd1a646",
		},
		{
			"2.8.2", "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f", "070000004041424344454647",
			"7bac2b252db447af09b67a55a4e955840ae1d6731075d9eb2a9375783ed553ff",
		},
	} {
		k, counter := nonceKey(t, generic, unhex(t, v.key), unhex(t, v.nonce))
		s := new(Scratch)
		jobs := s.vector.set(0, []Message{{Counter: counter}})
		c.chacha(k.secret, &s.vector, jobs, wantKey)
		if !bytes.Equal(jobs[0].key[:], unhex(t, v.want)) {
			t.Errorf("%s: got one-time key %x, want %s", v.name, jobs[0].key, v.want)
		}
	}
}

// secrets are what must not stay behind, in pieces of eight bytes: key, one-time keys, keystream and texts.
func secrets(t testing.TB, key *[KeyLen]byte, msgs []Message, plain [][]byte) map[uint64]bool {
	t.Helper()
	found := map[uint64]bool{}
	add := func(b []byte) {
		for i := 0; i+8 <= len(b); i++ {
			found[binary.LittleEndian.Uint64(b[i:])] = true
		}
	}
	add(key[:])
	for i, m := range msgs {
		add(plain[i])
		stream, err := chacha20.NewUnauthenticatedCipher(key[:], binary.LittleEndian.AppendUint64(make([]byte, 4), m.Counter))
		if err != nil {
			t.Fatal(err)
		}
		block := make([]byte, 64*(2+len(m.Text)/64))
		stream.XORKeyStream(block, block)
		add(block)
	}
	return found
}

func TestLeavesNoSecretInScratch(t *testing.T) { eachVector(t, leavesNoSecret) }

func leavesNoSecret(t *testing.T, impl *implementation, _ *trainCipher) {
	r := rand.New(rand.NewPCG(14, 14))
	key := randomKey(r)
	k, scratch := mustKey(t, impl, key), new(Scratch)
	for n, longest := range map[int]int{1: 100, 2: 1500, 3: 300, 8: 2000, 64: 2000, 100: 30} {
		var msgs []Message
		var plain [][]byte
		for range n {
			text := randomBytes(r, 8+r.IntN(longest)+TagLen)
			msgs = append(msgs, Message{Counter: r.Uint64(), Text: text})
			plain = append(plain, bytes.Clone(text[:len(text)-TagLen]))
		}
		secret := secrets(t, key, msgs, plain)
		k.Seal(scratch, msgs)
		left(t, "Seal", scratch, secret)
		msgs[0].Text[0] ^= 1
		if k.Open(scratch, msgs); msgs[0].Valid {
			t.Fatal("a corrupted message is valid, want it invalid")
		}
		left(t, "Open", scratch, secret)
	}
}

func left(t *testing.T, after string, s *Scratch, secret map[uint64]bool) {
	t.Helper()
	if s.vector.jobs != [batchLen]polyJob{} {
		t.Errorf("after %s: got one-time keys, tags or pointers to texts in the scratch space, want none", after)
	}
	if s.vector.fuse != (fusedScratch{}) {
		t.Errorf("after %s: got keys or sums of Poly1305 in the scratch space, want none", after)
	}
	if s.vector.copies != [copyLen]byte{} {
		t.Errorf("after %s: got copied text in the scratch space, want zeros", after)
	}
	for i := 0; i+8 <= len(s.vector.area); i++ {
		if secret[binary.LittleEndian.Uint64(s.vector.area[i:])] {
			t.Fatalf("after %s: got a secret at byte %d of the work area, want none", after, i)
		}
	}
	const spilt, spiltLen = 4480, 1024 // waitOut in _asm/chacha.go: words of keystream, but not of one block in a row
	for what, part := range map[string][]byte{
		"put-by words": s.vector.area[spilt+63 : spilt+spiltLen],
		"slots":        s.vector.area[areaFixed+63:],
	} {
		if len(bytes.Trim(part, "\x00")) > 0 {
			t.Fatalf("after %s: got data in the %s, want zeros", after, what)
		}
	}
}
