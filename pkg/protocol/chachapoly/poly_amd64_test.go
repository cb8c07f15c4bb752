// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"golang.org/x/crypto/chacha20"
	"golang.org/x/crypto/chacha20poly1305"
)

func polyNeeds512(t testing.TB) {
	t.Helper()
	if !hasAVX512() {
		t.Skip("the CPU lacks AVX-512 with IFMA and VBMI2")
	}
}

func tags512(jobs []polyJob) { polyTags512(new(vectorScratch), jobs) }

// checkTags compares with the jobs' tags done one by one.
func checkTags(t *testing.T, jobs []polyJob, do func([]polyJob)) {
	t.Helper()
	want := slices.Clone(jobs)
	for i := range want {
		polyTagGeneric(&want[i])
		jobs[i].tag = [16]byte{0xba, 0xad}
	}
	do(jobs)
	for i := range jobs {
		if jobs[i] != want[i] {
			t.Errorf("job %d of %d, %d bytes: got tag %x, want %x", i, len(jobs), jobs[i].n, jobs[i].tag, want[i].tag)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
}

// inLanes does up to 8>>log sorted jobs by one call, as no plan might.
func inLanes(log int) func([]polyJob) {
	return func(jobs []polyJob) {
		var l polyLanes
		l.set(jobs, []uint8{0, 1, 2, 3, 4, 5, 6, 7}[:len(jobs)], log)
		polyLanes512(&l)
	}
}

func eachSplit(t *testing.T, f func(t *testing.T, log int)) {
	polyNeeds512(t)
	for log := range polyCostCall {
		t.Run(fmt.Sprintf("lanes each=%d", 1<<log), func(t *testing.T) { f(t, log) })
	}
}

// awkwardLengths are all to 600, and those around multiples of 64 above: of a row of every split.
func awkwardLengths() (lengths []int) {
	for n := range 601 {
		lengths = append(lengths, n)
	}
	for n := 640; n <= 9000; n += 64 {
		lengths = append(lengths, n-17, n-16, n-15, n-1, n, n+1, n+15, n+16, n+17)
	}
	return append(lengths, 9000, 65535, 65536)
}

func TestVectorTagMatchesGenericAtEveryLength(t *testing.T) {
	eachSplit(t, func(t *testing.T, log int) {
		for i, n := range awkwardLengths() {
			jobs := make([]polyJob, polyLaneCount>>log)
			for k := range jobs {
				jobs[k] = polyFills[(i+k)%len(polyFills)].job(n)
			}
			checkTags(t, jobs, inLanes(log))
		}
	})
}

func TestVectorTagMatchesGenericForMixedLengths(t *testing.T) {
	eachSplit(t, func(t *testing.T, log int) {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 500 {
			jobs := make([]polyJob, 1+rng.IntN(polyLaneCount>>log))
			for k := range jobs {
				jobs[k] = polyFills[k%len(polyFills)].job(rng.IntN(1 << rng.IntN(13)))
			}
			slices.SortFunc(jobs, func(a, b polyJob) int { return b.n - a.n })
			checkTags(t, jobs, inLanes(log))
		}
	})
}

func TestVectorTagReducesFullyAtModulus(t *testing.T) {
	eachSplit(t, func(t *testing.T, log int) {
		for jobs := range slices.Chunk(polyNearModulus(), polyLaneCount>>log) {
			checkTags(t, jobs, inLanes(log))
		}
	})
}

func TestVectorTagMatchesDefinitionOnRFCInputs(t *testing.T) {
	eachSplit(t, func(t *testing.T, log int) {
		for _, v := range polyVectors {
			jobs := make([]polyJob, 1)
			jobs[0].key = [32]byte(polyUnhex(t, v.key))
			jobs[0].setText(polyUnhex(t, v.text))
			checkTags(t, jobs, inLanes(log))
			if want := polyTagBig(&jobs[0]); jobs[0].tag != want {
				t.Errorf("%s: got tag %x, want %x", v.name, jobs[0].tag, want)
			}
		}
	})
}

func TestVectorTagMatchesGenericForRandomSets(t *testing.T) {
	polyNeeds512(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for count := range 140 {
		for range 4 {
			jobs := make([]polyJob, count)
			for k := range jobs {
				jobs[k] = polyFills[rng.IntN(2)].job(rng.IntN(1 << rng.IntN(12)))
			}
			checkTags(t, jobs, tags512)
		}
	}
}

func TestVectorTagMatchesGenericForTrains(t *testing.T) {
	polyNeeds512(t)
	for _, n := range []int{0, 1, 16, 52, 100, 576, 1280, 1420, 1440, 8920} {
		for count := 1; count <= 45; count += 4 {
			jobs := make([]polyJob, count)
			for k := range jobs {
				jobs[k] = polyFills[0].job(n)
			}
			jobs[count-1] = polyFills[0].job(n / 3)
			checkTags(t, jobs, tags512)
		}
	}
}

func TestTagsMatchAEAD(t *testing.T) {
	polyNeeds512(t)
	key := bytes.Repeat([]byte{7}, chacha20poly1305.KeySize)
	aead, err := chacha20poly1305.New(key)
	if err != nil {
		t.Fatal(err)
	}
	jobs, want := make([]polyJob, 20), make([][16]byte, 20)
	for i := range jobs {
		nonce := make([]byte, chacha20poly1305.NonceSize)
		nonce[4] = byte(i)
		stream, err := chacha20.NewUnauthenticatedCipher(key, nonce)
		if err != nil {
			t.Fatal(err)
		}
		stream.XORKeyStream(jobs[i].key[:], jobs[i].key[:])
		sealed := aead.Seal(nil, nonce, make([]byte, 97*i), nil)
		jobs[i].setText(sealed[:97*i])
		want[i] = [16]byte(sealed[97*i:])
	}
	tags512(jobs)
	for i := range jobs {
		if jobs[i].tag != want[i] {
			t.Errorf("%d bytes: got tag %x, want %x", jobs[i].n, jobs[i].tag, want[i])
		}
	}
}

func TestTagsIgnoreBytesOutsideText(t *testing.T) {
	eachSplit(t, func(t *testing.T, log int) {
		for n := range 300 {
			j := polyFills[0].job(n)
			around := bytes.Repeat([]byte{0xa5}, n+256)
			copy(around[128:], j.bytes())
			j.text = &around[128]
			checkTags(t, []polyJob{j}, inLanes(log))
		}
	})
}

func TestPlansCoverEveryJobOnce(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 2000 {
		jobs := make([]polyJob, 1+rng.IntN(polyLaneCount))
		for i := range jobs {
			jobs[i].n = rng.IntN(1 << rng.IntN(17))
		}
		var order [polyWindow]uint8
		polySort(jobs, &order)
		plan, at := polyPlan(jobs, order[:len(jobs)]), 0
		for at < len(jobs) {
			if log := int(plan[at]); log == polyAlone {
				at++
			} else {
				at += min(polyLaneCount>>log, len(jobs)-at)
			}
		}
		if at != len(jobs) {
			t.Fatalf("got %d jobs, want %d", at, len(jobs))
		}
	}
}

func TestJobsAreTakenLongestFirst(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for count := range polyWindow + 1 {
		jobs := make([]polyJob, count)
		for i := range jobs {
			jobs[i].n = rng.IntN(20)
		}
		var order [polyWindow]uint8
		polySort(jobs, &order)
		seen := map[uint8]bool{}
		for i, o := range order[:count] {
			seen[o] = true
			if i > 0 && jobs[o].n > jobs[order[i-1]].n {
				t.Fatalf("got a job of %d bytes after one of %d, want descending lengths", jobs[o].n, jobs[order[i-1]].n)
			}
		}
		if len(seen) != count {
			t.Fatalf("got %d different jobs, want %d", len(seen), count)
		}
	}
}

// TestAssemblyMatchesLaneLayout holds the offsets in _asm/poly.go against the types.
func TestAssemblyMatchesLaneLayout(t *testing.T) {
	for _, c := range []struct {
		of    any
		field string
		at    uintptr
	}{
		{polyJob{}, "key", 0},
		{polyJob{}, "text", 32},
		{polyJob{}, "n", 40},
		{polyJob{}, "tag", 48},
		{polyLanes{}, "job", 0},
		{polyLanes{}, "off", 64},
		{polyLanes{}, "end", 128},
		{polyLanes{}, "stride", 192},
		{polyLanes{}, "lead", 200},
		{polyLanes{}, "full", 208},
		{polyLanes{}, "split", 216},
	} {
		f, ok := reflect.TypeOf(c.of).FieldByName(c.field)
		if !ok || f.Offset != c.at {
			t.Errorf("%T.%s: got offset %d, want %d as in the assembly", c.of, c.field, f.Offset, c.at)
		}
	}
}

func TestTagsAllocateNothing(t *testing.T) {
	polyNeeds512(t)
	jobs := make([]polyJob, 45)
	for i := range jobs {
		jobs[i] = polyFills[0].job(1440 - i%3)
	}
	if n := testing.AllocsPerRun(10, func() { tags512(jobs) }); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

func FuzzSetTagsMatchSingleTags(f *testing.F) {
	f.Add([]byte("texts of a train"), []byte{3, 5, 8, 0})
	f.Add(bytes.Repeat([]byte{0xff}, 500), []byte{100, 100, 100, 100, 100})
	f.Add(bytes.Repeat([]byte{0}, 4000), []byte{255, 255, 255, 255, 255, 255, 255, 255, 17})
	f.Fuzz(func(t *testing.T, data, lengths []byte) {
		polyNeeds512(t)
		var jobs []polyJob
		for _, n := range lengths[:min(len(lengths), 100)] {
			var j polyJob
			copy(j.key[:], data)
			data = data[min(len(data), 7):]
			j.setText(data[:min(len(data), 8*int(n)+int(n)%8)])
			jobs = append(jobs, j)
		}
		checkTags(t, jobs, tags512)
	})
}
