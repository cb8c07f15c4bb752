// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"bytes"
	"crypto/subtle"

	"golang.org/x/sys/cpu"
)

//go:generate go run -C _asm . -out ../chacha_amd64.s chacha

// AVX512 is the implementation with vector lanes: sixteen blocks of ChaCha20 (AVX-512 F and BW) and eight messages of
// Poly1305 (IFMA) at a time.
const AVX512 = "avx512"

const (
	// batchLen is the number of messages that are encrypted and authenticated together. 16 to 64 are equally fast.
	batchLen = 32

	// copyLen is the largest text in bytes for which copying is worthwhile to save a pass of sixteen blocks: see
	// openCopies.
	copyLen = 1536

	// minVectorBytes is the size from which one or two messages are faster with vectors: BenchmarkSets measures the
	// crossover.
	minVectorBytes = 1280
)

// The layout of chachaLanes512's area, as in _asm/chacha.go: lanes, then a slot for each job.
const (
	areaFixed = 5696
	areaSlot  = 128
)

const (
	wantKey  = 1 // write each job's one-time key
	wantText = 2 // xor the keystream into each job's text
)

// chachaLanes512 runs ChaCha20 over n jobs, sixteen blocks of any of them at a time. Only this function holds
// addresses as numbers, and no stack can move while it runs. The slots in area are zero before and after.
//
//go:noescape
func chachaLanes512(state *[16]uint32, jobs *polyJob, nonces *uint64, n int, what uint64, area *byte)

type vectorScratch struct {
	jobs   [batchLen]polyJob
	nonces [batchLen]uint64
	area   [areaFixed + batchLen*areaSlot + 63]byte
	copies [copyLen]byte
}

func vectorImplementations() []*implementation {
	i := &implementation{name: AVX512, seal: sealVector, open: openVector, suits: suits512}
	if !hasAVX512() || !selfTest(i) {
		return nil
	}
	return []*implementation{i}
}

// hasAVX512 reports whether the CPU supports the features of both parts: ChaCha20 F, BW and BMI2, Poly1305 also DQ, VL, IFMA and VBMI2.
func hasAVX512() bool {
	x := cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512IFMA && x.HasAVX512VBMI2 && x.HasBMI2
}

func suits512(msgs []Message) bool {
	n := 0
	for i := range msgs {
		n += len(msgs[i].Text)
		if i >= 2 || n >= minVectorBytes {
			return true
		}
	}
	return false
}

func sealVector(k *secret, s *Scratch, msgs []Message) {
	for len(msgs) > 0 {
		batch := msgs[:min(batchLen, len(msgs))]
		msgs = msgs[len(batch):]
		jobs := s.vector.set(batch)
		s.vector.chacha(k, jobs, wantKey|wantText)
		polyTags512(jobs)
		for i := range batch {
			if n := len(batch[i].Text) - TagLen; n >= 0 {
				*(*[TagLen]byte)(batch[i].Text[n:]) = jobs[i].tag
			}
		}
		clear(jobs)
	}
}

func openVector(k *secret, s *Scratch, msgs []Message) {
	for len(msgs) > 0 {
		batch := msgs[:min(batchLen, len(msgs))]
		msgs = msgs[len(batch):]
		jobs := s.vector.set(batch)
		if size, saves := copiesSavePass(jobs); saves {
			s.vector.openCopies(k, jobs, batch)
			clear(s.vector.copies[:size])
		} else {
			s.vector.openInPlace(k, jobs, batch)
		}
		clear(jobs)
	}
}

// copiesSavePass reports whether computing one-time keys and texts together takes a pass less than one after the
// other, with no more text than is worth copying for that.
func copiesSavePass(jobs []polyJob) (size int, saves bool) {
	blocks := 0
	for i := range jobs {
		size += jobs[i].n
		blocks += (jobs[i].n + 63) / 64
	}
	passes := func(n int) int { return (n + 15) / 16 }
	return size, size <= copyLen && passes(len(jobs)+blocks) < passes(len(jobs))+passes(blocks)
}

func (s *vectorScratch) openInPlace(k *secret, jobs []polyJob, batch []Message) {
	s.chacha(k, jobs, wantKey)
	polyTags512(jobs)
	for i := range batch {
		if batch[i].Valid = matches(&jobs[i], &batch[i]); !batch[i].Valid {
			jobs[i].n = 0
		}
	}
	s.chacha(k, jobs, wantText)
}

// openCopies decrypts copies in the passes that compute the one-time keys, and copies back those that are authentic.
func (s *vectorScratch) openCopies(k *secret, jobs []polyJob, batch []Message) {
	rest := s.copies[:]
	for i := range jobs {
		if n := jobs[i].n; n > 0 {
			copy(rest, batch[i].Text[:n])
			jobs[i].text, rest = &rest[0], rest[n:]
		}
	}
	s.chacha(k, jobs, wantKey|wantText)
	for i := range jobs {
		if jobs[i].n > 0 {
			jobs[i].text = &batch[i].Text[0]
		}
	}
	polyTags512(jobs)
	rest = s.copies[:]
	for i := range batch {
		if batch[i].Valid = matches(&jobs[i], &batch[i]); batch[i].Valid {
			copy(batch[i].Text, rest[:jobs[i].n])
		}
		rest = rest[jobs[i].n:]
	}
}

func matches(j *polyJob, m *Message) bool {
	n := len(m.Text) - TagLen
	return n >= 0 && subtle.ConstantTimeCompare(j.tag[:], m.Text[n:]) == 1
}

// set creates a job for each message; a message that is too short gets an empty text.
func (s *vectorScratch) set(batch []Message) []polyJob {
	jobs := s.jobs[:len(batch)]
	for i := range batch {
		s.nonces[i] = batch[i].Counter
		if n := len(batch[i].Text) - TagLen; n > 0 {
			jobs[i].text, jobs[i].n = &batch[i].Text[0], n
		}
	}
	return jobs
}

func (s *vectorScratch) chacha(k *secret, jobs []polyJob, what uint64) {
	chachaLanes512(&k.state, &jobs[0], &s.nonces[0], len(jobs), what, &s.area[0])
}

// selfTest reports whether i seals as Generic does and opens the result: a CPU or emulator that reports features it
// does not implement correctly must not lose packets.
func selfTest(i *implementation) bool {
	const n = 9
	var key [KeyLen]byte
	var want, got [n]Message
	for j := range n {
		key[j] = byte(j + 1)
		want[j] = Message{Counter: uint64(j) << 30, Text: bytes.Repeat([]byte{byte(j)}, 37*j+TagLen)}
		got[j] = Message{Counter: want[j].Counter, Text: bytes.Clone(want[j].Text)}
	}
	k, err := newKey(generic, &key, 0)
	if err != nil {
		return true // no key will be made
	}
	s := new(Scratch)
	sealEach(k.secret, s, want[:])
	i.seal(k.secret, s, got[:])
	for j := range n {
		if !bytes.Equal(got[j].Text, want[j].Text) {
			return false
		}
	}
	i.open(k.secret, s, got[:])
	ok := true
	for j := range n {
		ok = ok && got[j].Valid && bytes.Count(got[j].Text[:37*j], []byte{byte(j)}) == 37*j
	}
	return ok
}
