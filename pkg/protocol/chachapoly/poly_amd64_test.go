// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/crypto/chacha20"
	"golang.org/x/crypto/chacha20poly1305"
)

// eachPolyKernel runs a test for every kernel that the CPU supports.
func eachPolyKernel(t *testing.T, f func(t *testing.T, p *polyKernel)) {
	t.Helper()
	for _, k := range polyKernels {
		t.Run(k.name, func(t *testing.T) {
			if !k.supported() {
				t.Skip("the CPU does not support ", k.name)
			}
			f(t, k.kernel)
		})
	}
}

var polyKernels = []struct {
	name      string
	supported func() bool
	kernel    *polyKernel
}{{AVX512, hasAVX512, poly512}, {AVX2, hasAVX2, poly256}}

// planned computes tags as the plan says.
func planned(p *polyKernel) func([]polyJob) {
	s := new(polyScratch)
	return func(jobs []polyJob) { p.tags(s, jobs) }
}

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

// inLanes does up to a kernel's lanes>>log sorted jobs by one call, as no plan might.
func inLanes(p *polyKernel, log int) func([]polyJob) {
	s := new(polyScratch)
	return func(jobs []polyJob) { p.run(s, jobs, []uint8{0, 1, 2, 3, 4, 5, 6, 7}[:len(jobs)], log) }
}

func eachSplit(t *testing.T, f func(t *testing.T, p *polyKernel, log int)) {
	t.Helper()
	eachPolyKernel(t, func(t *testing.T, p *polyKernel) {
		for log := range p.call {
			t.Run(fmt.Sprintf("lanes each=%d", 1<<log), func(t *testing.T) { f(t, p, log) })
		}
	})
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
	eachSplit(t, func(t *testing.T, p *polyKernel, log int) {
		for i, n := range awkwardLengths() {
			jobs := make([]polyJob, p.lanes>>log)
			for k := range jobs {
				jobs[k] = polyFills[(i+k)%len(polyFills)].job(n)
			}
			checkTags(t, jobs, inLanes(p, log))
		}
	})
}

func TestVectorTagMatchesGenericForMixedLengths(t *testing.T) {
	eachSplit(t, func(t *testing.T, p *polyKernel, log int) {
		rng := rand.New(rand.NewPCG(1, 2))
		for range 500 {
			jobs := make([]polyJob, 1+rng.IntN(p.lanes>>log))
			for k := range jobs {
				jobs[k] = polyFills[k%len(polyFills)].job(rng.IntN(1 << rng.IntN(13)))
			}
			slices.SortFunc(jobs, func(a, b polyJob) int { return b.n - a.n })
			checkTags(t, jobs, inLanes(p, log))
		}
	})
}

func TestVectorTagReducesFullyAtModulus(t *testing.T) {
	eachSplit(t, func(t *testing.T, p *polyKernel, log int) {
		for jobs := range slices.Chunk(polyNearModulus(), p.lanes>>log) {
			checkTags(t, jobs, inLanes(p, log))
		}
	})
}

func TestVectorTagMatchesDefinitionOnRFCInputs(t *testing.T) {
	eachSplit(t, func(t *testing.T, p *polyKernel, log int) {
		for _, v := range polyVectors {
			jobs := make([]polyJob, 1)
			jobs[0].key = [32]byte(polyUnhex(t, v.key))
			jobs[0].setText(polyUnhex(t, v.text))
			checkTags(t, jobs, inLanes(p, log))
			if want := polyTagBig(&jobs[0]); jobs[0].tag != want {
				t.Errorf("%s: got tag %x, want %x", v.name, jobs[0].tag, want)
			}
		}
	})
}

func TestVectorTagMatchesGenericForRandomSets(t *testing.T) {
	eachPolyKernel(t, func(t *testing.T, p *polyKernel) {
		rng := rand.New(rand.NewPCG(3, 4))
		for count := range 140 {
			for range 4 {
				jobs := make([]polyJob, count)
				for k := range jobs {
					jobs[k] = polyFills[rng.IntN(2)].job(rng.IntN(1 << rng.IntN(12)))
				}
				checkTags(t, jobs, planned(p))
			}
		}
	})
}

func TestVectorTagMatchesGenericForTrains(t *testing.T) {
	eachPolyKernel(t, func(t *testing.T, p *polyKernel) {
		for _, n := range []int{0, 1, 16, 52, 100, 576, 1280, 1420, 1440, 8920} {
			for count := 1; count <= 45; count += 4 {
				jobs := make([]polyJob, count)
				for k := range jobs {
					jobs[k] = polyFills[0].job(n)
				}
				jobs[count-1] = polyFills[0].job(n / 3)
				checkTags(t, jobs, planned(p))
			}
		}
	})
}

func TestTagsMatchAEAD(t *testing.T) {
	eachPolyKernel(t, func(t *testing.T, p *polyKernel) {
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
		planned(p)(jobs)
		for i := range jobs {
			if jobs[i].tag != want[i] {
				t.Errorf("%d bytes: got tag %x, want %x", jobs[i].n, jobs[i].tag, want[i])
			}
		}
	})
}

func TestTagsIgnoreBytesOutsideText(t *testing.T) {
	eachSplit(t, func(t *testing.T, p *polyKernel, log int) {
		for n := range 300 {
			j := polyFills[0].job(n)
			around := bytes.Repeat([]byte{0xa5}, n+256)
			copy(around[128:], j.bytes())
			j.text = &around[128]
			checkTags(t, []polyJob{j}, inLanes(p, log))
		}
	})
}

func TestPlansCoverEveryJobOnce(t *testing.T) {
	eachPolyKernel(t, func(t *testing.T, p *polyKernel) {
		rng := rand.New(rand.NewPCG(5, 6))
		for range 2000 {
			jobs := make([]polyJob, 1+rng.IntN(polyBatch))
			for i := range jobs {
				jobs[i].n = rng.IntN(1 << rng.IntN(17))
			}
			var order [polyWindow]uint8
			polySort(jobs, &order)
			plan, at := p.plan(jobs, order[:len(jobs)]), 0
			for at < len(jobs) {
				if log := int(plan[at]); log == polyAlone {
					at++
				} else {
					at += min(p.lanes>>log, len(jobs)-at)
				}
			}
			if at != len(jobs) {
				t.Fatalf("got %d jobs, want %d", at, len(jobs))
			}
		}
	})
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

func TestAssemblyMatchesLaneLayout(t *testing.T) {
	checkLayout[polyJob](t, 64, layout{"key": 0, "text": 32, "n": 40, "tag": 48})
	checkLayout[polyLanes](t, 0, layout{"job": 0, "off": 64, "end": 128, "stride": 192, "lead": 200, "full": 208, "split": 216})
	checkLayout[polyQuad](t, 0, layout{"job": 0, "off": 32, "lead": 64, "full": 72, "skip": 80})
	checkLayout[polyMAC](t, 0, layout{"h0": 0, "h1": 8, "h2": 16, "r0": 24, "r1": 32})
	checkLayout[macRun](t, 24, layout{"mac": 0, "text": 8, "units": 16})
}

func TestTagsAllocateNothing(t *testing.T) {
	eachPolyKernel(t, func(t *testing.T, p *polyKernel) {
		jobs := make([]polyJob, 45)
		for i := range jobs {
			jobs[i] = polyFills[0].job(1440 - i%3)
		}
		do := planned(p)
		if n := testing.AllocsPerRun(10, func() { do(jobs) }); n != 0 {
			t.Errorf("got %v allocations, want 0", n)
		}
	})
}

func FuzzSetTagsMatchSingleTags(f *testing.F) {
	f.Add([]byte("texts of a train"), []byte{3, 5, 8, 0})
	f.Add(bytes.Repeat([]byte{0xff}, 500), []byte{100, 100, 100, 100, 100})
	f.Add(bytes.Repeat([]byte{0}, 4000), []byte{255, 255, 255, 255, 255, 255, 255, 255, 17})
	f.Fuzz(func(t *testing.T, data, lengths []byte) {
		var jobs []polyJob
		for _, n := range lengths[:min(len(lengths), 100)] {
			var j polyJob
			copy(j.key[:], data)
			data = data[min(len(data), 7):]
			j.setText(data[:min(len(data), 8*int(n)+int(n)%8)])
			jobs = append(jobs, j)
		}
		for _, k := range polyKernels {
			if k.supported() {
				checkTags(t, jobs, planned(k.kernel))
			}
		}
	})
}
