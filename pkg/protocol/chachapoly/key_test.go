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
	if all := supported(); all[len(all)-1] != Generic || !slices.Contains(all, Implementation()) {
		t.Errorf("supported() = %v, Implementation() = %s, want Generic last and the one in use among them", all, Implementation())
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

func TestPrefersImplementationFasterByTenth(t *testing.T) {
	for _, c := range []struct {
		took []time.Duration
		want int
	}{
		{[]time.Duration{0}, 0},
		{[]time.Duration{100, 91}, 0},
		{[]time.Duration{100, 89}, 1},
		{[]time.Duration{100, 80, 73}, 1},
		{[]time.Duration{100, 80, 71}, 2},
		{[]time.Duration{50, 100, 200}, 0},
		{[]time.Duration{0, 0, 0}, 0},
	} {
		if got := fastest(c.took); got != c.want {
			t.Errorf("fastest(%v) = %d, want %d", c.took, got, c.want)
		}
	}
}

func TestStartTimesEachImplementationOnTrain(t *testing.T) {
	did := map[string]int{}
	var list []*implementation
	for _, name := range []string{"a", "b"} {
		list = append(list, &implementation{
			name: name,
			seal: func(_ *secret, _ *Scratch, msgs []Message) { did[name] += len(msgs) },
			open: func(_ *secret, _ *Scratch, msgs []Message) { did[name] -= len(msgs) / 2 },
		})
	}
	if took := timeTrain(list); len(took) != 2 || did["a"] < 16 || did["a"] != did["b"] {
		t.Errorf("got timings %v and net messages %v, want two timings of equal work", took, did)
	}
	if timeTrain(list[:1]); did["a"] != did["b"] {
		t.Error("an implementation without alternative was timed, want no work")
	}
}

func TestKeysUseRequestedImplementation(t *testing.T) {
	var bytes [KeyLen]byte
	for _, name := range supported() {
		k, err := newKeyWith(name, &bytes)
		if err != nil || k.Implementation() != name {
			t.Fatalf("newKeyWith(%s): got error %v, want none and that implementation", name, err)
		}
		if err := k.Use(Generic); err != nil || k.Implementation() != Generic {
			t.Errorf("key for %s: Use(Generic): got error %v, want none and Generic in use", name, err)
		}
		if err := k.Use("enigma"); err == nil || k.Implementation() != Generic {
			t.Error("Use of an unknown implementation: got no error, or another implementation in use")
		}
	}
	if _, err := newKeyWith("enigma", &bytes); err == nil {
		t.Error("newKeyWith an unknown implementation: got no error")
	}
	if k, err := NewKey(&bytes); err != nil || k.Implementation() != Implementation() {
		t.Errorf("NewKey: got error %v, want none and the default implementation", err)
	}
}

func TestKeyIsSafeForConcurrentUse(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	key := randomKey(r)
	k, o := mustKey(t, preferred(), key), newOracle(t, key)
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			r, scratch := rand.New(rand.NewPCG(10, uint64(i))), new(Scratch)
			for n := range 40 {
				newSet(t, r, o, r.Perm(n), func() int { return 0 }).check(t, k, scratch)
			}
		})
	}
	for n := range 100 {
		all := supported()
		if err := k.Use(all[n%len(all)]); err != nil {
			t.Error(err)
		}
		runtime.Gosched()
	}
	running.Wait()
}

func TestAnUnreachableKeyIsOverwritten(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 11))
	k := mustKey(t, preferred(), randomKey(r))
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

func newKeyWith(name string, key *[KeyLen]byte) (*Key, error) {
	i, err := lookup(name)
	if err != nil {
		return nil, err
	}
	return newKey(i, key, 0)
}
