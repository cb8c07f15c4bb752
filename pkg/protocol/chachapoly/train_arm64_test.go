// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/cpu"
)

func TestFallsBackWithoutRequiredCPUFeature(t *testing.T) {
	for name, c := range map[string]struct {
		flag *bool
		want int
	}{
		"ASIMD": {&cpu.ARM64.HasASIMD, 0},
		"SVE2":  {&cpu.ARM64.HasSVE2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			was := *c.flag
			t.Cleanup(func() { *c.flag = was })
			*c.flag = false
			if got, failed := checked(vectorImplementations); len(got) != c.want || len(failed) > 0 {
				t.Errorf("got %d vector implementations without the CPU flag and failed self-tests %v, want %d and none", len(got), failed, c.want)
			}
		})
	}
}

func TestSmallSetsDoNotUseSVE2(t *testing.T) {
	for _, c := range []struct {
		cipher *trainCipher
		count  int
		want   kernel
	}{
		{trainNEON, 1000, kernelNEON},
		{trainSVE2, 1, kernelNEON},
		{trainSVE2, minSVE2Bytes/100 - 1, kernelNEON},
		{trainSVE2, minSVE2Bytes/100 + 1, kernelSVE2},
	} {
		msgs := make([]Message, c.count)
		for i := range msgs {
			msgs[i].Text = make([]byte, 100)
		}
		if got := c.cipher.kernel(msgs); got != c.want {
			t.Errorf("%d messages, SVE2 %v: got kernel %d, want %d", c.count, c.cipher.sve2, got, c.want)
		}
	}
}

func TestSelfTestReachesSVE2Kernel(t *testing.T) {
	reached := false
	selfTest(&implementation{
		seal: func(_ *secret, _ *Scratch, msgs []Message) { reached = trainSVE2.kernel(msgs) == kernelSVE2 },
		open: openEach,
	})
	if !reached {
		t.Error("the self-test's set is too small for SVE2, want it sealed by the SVE2 kernels")
	}
}

func TestLeavesNoSecretInScratch(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(14, 14))
		k, scratch := mustKey(t, impl, randomKey(r)), new(Scratch)
		for _, n := range []int{1, 2, 3, 8, 32, 33, 64, 100} {
			msgs := make([]Message, n)
			for i := range msgs {
				msgs[i] = Message{Counter: r.Uint64(), Text: randomBytes(r, 8+r.IntN(2000)+TagLen)}
			}
			k.Seal(scratch, msgs)
			empty(t, "Seal", &scratch.vector)
			msgs[0].Text[0] ^= 1
			if k.Open(scratch, msgs); msgs[0].Valid {
				t.Fatal("a corrupted message is valid, want it invalid")
			}
			empty(t, "Open", &scratch.vector)
		}
	})
}

func empty(t *testing.T, after string, v *vectorScratch) {
	t.Helper()
	for i := range v.works {
		if w := &v.works[i]; w.msg != nil || w.text != nil || w.stream != 0 || w.mac != (polyMAC{}) {
			t.Fatalf("after %s: got a key or a pointer to a message in work %d of the scratch space, want none", after, i)
		}
	}
	if v.stream != [len(v.stream)]byte{} || v.state != [16]uint32{} || v.spill != [spillLen]byte{} {
		t.Fatalf("after %s: got keystream or key in the scratch space, want zeros", after)
	}
}

// TestSetsWithInvalidMessagesBetweenPasses has messages of several passes beside short, empty and invalid ones, so that
// the kernels meet every pair of lengths.
func TestSetsWithInvalidMessagesBetweenPasses(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(15, 15))
		key := randomKey(r)
		k, o, scratch := mustKey(t, impl, key), newOracle(t, key), new(Scratch)
		for range 150 {
			lengths := make([]int, 1+r.IntN(12))
			for i := range lengths {
				lengths[i] = passLen*r.IntN(6) + r.IntN(3)*r.IntN(passLen)
			}
			newSet(t, r, o, lengths, func() int { return 1 }).check(t, k, scratch)
			tampered(t, r, newSet(t, r, o, lengths, func() int { return 1 }), k, scratch)
		}
	})
}
