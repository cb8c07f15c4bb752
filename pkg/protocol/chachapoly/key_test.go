// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestListsGenericLast(t *testing.T) {
	if all := supported(); all[len(all)-1] != Generic {
		t.Errorf("supported() = %v, want Generic last", all)
	}
}

func TestNamesImplementationThatFailsSelfTest(t *testing.T) {
	right, wrong, absent := *generic, *generic, *generic
	wrong.name, wrong.open = "wrong", func(*secret, *Scratch, []Message) {}
	absent.name, absent.supported = "absent", func() bool { return false }
	list, failed := checked([]*implementation{&absent, &wrong, &right})
	if len(list) != 1 || list[0] != &right || !slices.Equal(failed, []string{"wrong"}) {
		t.Errorf("got %d implementations and failed self-tests %v, want only the right one, and wrong", len(list), failed)
	}
	if failed := FailedSelfTest(); len(failed) > 0 {
		t.Errorf("FailedSelfTest() = %v, want none", failed)
	}
}

// TestFastestIsChosenForEachClass has implementations whose speed depends on operation, number and length. The clock counts their work.
func TestFastestIsChosenForEachClass(t *testing.T) {
	var clock time.Duration
	impl := func(name string, seal, open func(n, length int) time.Duration) *implementation {
		work := func(cost func(n, length int) time.Duration) func(*secret, *Scratch, []Message) {
			return func(_ *secret, _ *Scratch, msgs []Message) { clock += cost(len(msgs), len(msgs[0].Text)) }
		}
		return &implementation{name: name, seal: work(seal), open: work(open)}
	}
	constant := func(d time.Duration) func(int, int) time.Duration { return func(int, int) time.Duration { return d } }
	many := impl("many", func(n, _ int) time.Duration { return time.Duration(100 - n) }, constant(120))
	long := impl("long", constant(1000), func(_, length int) time.Duration { return time.Duration(2000 - length) })
	slow := impl("slow", constant(100), constant(1999))
	last := impl("last", constant(97), constant(1950))
	c := fastest([]*implementation{many, long, slow, last}, func() time.Time { return time.Time{}.Add(clock) })
	for _, want := range []struct {
		op       operation
		messages int
		length   int
		name     string
		took     time.Duration
	}{
		{sealing, 1, 80, "last", 97},
		{sealing, 3, 1456, "last", 97}, // as fast as many
		{sealing, 4, 80, "many", 96},
		{sealing, 45, 1456, "many", 84},
		{opening, 1, 80, "many", 120},
		{opening, 16, 1456, "many", 120},
	} {
		count, size := classOf(slices.Repeat([]Message{{Text: make([]byte, want.length)}}, want.messages))
		if got := c[want.op][count][size]; got.name != want.name || got.took != want.took {
			t.Errorf("%s %d × %d B: got %s, %s, want %s, %s", want.op, want.messages, want.length, got.name, got.took, want.name, want.took)
		}
	}
	if c := fastest([]*implementation{last}, nil); c[opening][0][0] != (chosen{implementation: last}) {
		t.Errorf("one implementation: got %+v, want it, without times", c[opening][0][0])
	}
}

func TestSetsBelongToClasses(t *testing.T) {
	for _, c := range []struct {
		lengths     []int
		count, size int
	}{
		{[]int{0}, 0, 0},
		{[]int{32, 48}, 1, 0},
		{[]int{159, 159, 161}, 2, 0},
		{[]int{160, 160, 160}, 2, 1},
		{[]int{1456, 32, 32, 32, 32, 32, 32}, 3, 1},
		{slices.Repeat([]int{959}, 15), 4, 2},
		{slices.Repeat([]int{960}, 16), 5, 3},
		{slices.Repeat([]int{65000}, 128), 5, 3},
	} {
		var msgs []Message
		for _, n := range c.lengths {
			msgs = append(msgs, Message{Text: make([]byte, n)})
		}
		if count, size := classOf(msgs); count != c.count || size != c.size {
			t.Errorf("%d messages, the first of %d B: got class %d, %d, want %d, %d", len(msgs), c.lengths[0], count, size, c.count, c.size)
		}
	}
}

func TestChoicesNameSupportedImplementations(t *testing.T) {
	all := Choices()
	for _, name := range strings.Split(Implementation(), "+") {
		if !slices.ContainsFunc(all, func(c Choice) bool { return strings.HasPrefix(c.Implementation, name) }) {
			t.Errorf("Implementation() = %s, want those of %v", Implementation(), all)
		}
	}
	if want := int(operations) * len(classCounts) * len(classSizes); len(all) != want {
		t.Errorf("got %d choices, want %d", len(all), want)
	}
	for _, c := range all {
		if !slices.Contains(supported(), c.Implementation) || c.Took > c.Generic || c.Took <= 0 && len(supported()) > 1 {
			t.Errorf("got %+v, want a supported implementation that is as fast as Generic", c)
		}
	}
}

func TestEmptySetIsNoError(t *testing.T) {
	k, err := NewKey(new([KeyLen]byte))
	expect.NoError(t, err)
	k.Seal(new(Scratch), nil)
	k.Open(new(Scratch), nil)
}

func TestKeyIsSafeForConcurrentUse(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	key := randomKey(r)
	k, err := NewKey(key)
	expect.NoError(t, err)
	o := newOracle(t, key)
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			r, scratch := rand.New(rand.NewPCG(10, uint64(i))), new(Scratch)
			for n := range 40 {
				newSet(t, r, o, r.Perm(n), func() int { return 0 }).check(t, k, scratch)
			}
		})
	}
	running.Wait()
}

func TestAnUnreachableKeyIsOverwritten(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	k := mustKey(t, generic, randomKey(r))
	s := k.secret
	aead := aeadKey(s.aead)
	if aead == nil {
		t.Fatal("x/crypto's copy of the key was not found")
	}
	if *aead == [KeyLen]byte{} {
		t.Fatal("x/crypto's copy of the key is zero, want the key")
	}
	runtime.KeepAlive(k)
	k = nil
	expect.Eventually(t, "the key is overwritten", func() bool {
		runtime.GC()
		return s.wiped.Load()
	})
	if s.state != [16]uint32{} || *aead != [KeyLen]byte{} {
		t.Error("got key bytes after the wipe, want zeros")
	}
}

func TestWipeReturnsNilForUnknownCipher(t *testing.T) {
	for _, other := range []any{nil, 1, new(int), &struct{ key string }{}, &struct{ k [KeyLen]byte }{}, struct{ key [KeyLen]byte }{}} {
		if aeadKey(other) != nil {
			t.Errorf("aeadKey(%T) found a key, want nil", other)
		}
	}
}

func TestNoVerbPrintsKey(t *testing.T) {
	key := &[KeyLen]byte{0: 0xaa, 1: 0xaa, 2: 0xaa, 3: 0xaa}
	k := mustKey(t, generic, key)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%X", "%q", "%d"} {
		if out := fmt.Sprintf(verb, k); !strings.Contains(out, "chachapoly key") || strings.Contains(strings.ToLower(out), "aa") {
			t.Errorf("Sprintf(%q) = %s, want no key bytes", verb, out)
		}
	}
}

// TestSealingAndOpeningAllocateNothing allows x/crypto what it allocates itself where it has no assembly.
func TestSealingAndOpeningAllocateNothing(t *testing.T) {
	eachImplementation(t, func(t *testing.T, impl *implementation) {
		r := rand.New(rand.NewPCG(12, 12))
		key := randomKey(r)
		k, scratch, allowed := mustKey(t, impl, key), new(Scratch), 0.0
		if impl.name == Generic {
			allowed = xcryptoAllocations(t, key)
		}
		for _, n := range []int{1, 7, 45, 130} {
			msgs := make([]Message, n)
			for i := range msgs {
				msgs[i] = Message{Counter: uint64(i), Text: randomBytes(r, r.IntN(1500)+TagLen)}
			}
			got := testing.AllocsPerRun(20, func() { k.Seal(scratch, msgs); k.Open(scratch, msgs) })
			if got > allowed*float64(n) {
				t.Errorf("%d messages: got %v allocations, want at most %v", n, got, allowed*float64(n))
			}
		}
	})
}

func xcryptoAllocations(t *testing.T, key *[KeyLen]byte) float64 {
	o, nonce, text := newOracle(t, key), make([]byte, 12), make([]byte, 100+TagLen)
	return testing.AllocsPerRun(20, func() {
		o.Seal(text[:0], nonce, text[:100], nil)
		if _, err := o.Open(text[:0], nonce, text, nil); err != nil {
			t.Error(err)
		}
	})
}

// supported lists the implementations that this CPU supports.
func supported() []string {
	var names []string
	for _, i := range implementations() {
		names = append(names, i.name)
	}
	return names
}
