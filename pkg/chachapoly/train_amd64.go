// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import (
	"bytes"
	"crypto/subtle"

	"golang.org/x/sys/cpu"
)

//go:generate go run -C _asm . -out ../chacha_amd64.s chacha

// AVX512 is the implementation in vector lanes: sixteen blocks of ChaCha20 (AVX-512 F and BW) and eight messages of
// Poly1305 (IFMA) at a time.
const AVX512 = "avx512"

const (
	// groupLen is how many messages are encrypted and authenticated before the next are looked at. 16 to 64 measure
	// alike.
	groupLen = 32

	// asideLen is how much text is worth copying to save a pass of sixteen blocks: see openAside.
	asideLen = 1536

	// worthLen is from how many bytes on one or two messages are worth it: BenchmarkSets has the crossing.
	worthLen = 1280
)

// What _asm/chacha.go lays out in the area of chachaLanes512: lanes, then a slot for each job.
const (
	areaFixed = 5696
	areaSlot  = 128
)

const (
	wantKey  = 1 // write each job's one-time key
	wantText = 2 // add the keystream to each job's text
)

// chachaLanes512 runs ChaCha20 over n jobs, sixteen blocks of any of them at a time. It is the only place that holds
// addresses as numbers, and no stack can move while it runs. The slots in area are zero before and after.
//
//go:noescape
func chachaLanes512(state *[16]uint32, jobs *polyJob, nonces *uint64, n int, what uint64, area *byte)

type trainScratch struct {
	jobs   [groupLen]polyJob
	nonces [groupLen]uint64
	area   [areaFixed + groupLen*areaSlot + 63]byte
	aside  [asideLen]byte
}

func trainImplementations() []*implementation {
	i := &implementation{name: AVX512, seal: sealTrain, open: openTrain, worth: worth512}
	if !runs512() || !passes(i) {
		return nil
	}
	return []*implementation{i}
}

// runs512 asks for what either part uses: ChaCha20 F, BW and BMI2, Poly1305 also DQ, VL, IFMA and VBMI2.
func runs512() bool {
	x := cpu.X86
	return x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL && x.HasAVX512IFMA && x.HasAVX512VBMI2 && x.HasBMI2
}

func worth512(msgs []Message) bool {
	n := 0
	for i := range msgs {
		n += len(msgs[i].Text)
		if i >= 2 || n >= worthLen {
			return true
		}
	}
	return false
}

func sealTrain(k *secret, s *Scratch, msgs []Message) {
	for len(msgs) > 0 {
		group := msgs[:min(groupLen, len(msgs))]
		msgs = msgs[len(group):]
		jobs := s.train.set(group)
		s.train.chacha(k, jobs, wantKey|wantText)
		polyTags512(jobs)
		for i := range group {
			if n := len(group[i].Text) - TagLen; n >= 0 {
				*(*[TagLen]byte)(group[i].Text[n:]) = jobs[i].tag
			}
		}
		clear(jobs)
	}
}

func openTrain(k *secret, s *Scratch, msgs []Message) {
	for len(msgs) > 0 {
		group := msgs[:min(groupLen, len(msgs))]
		msgs = msgs[len(group):]
		jobs := s.train.set(group)
		if size, saves := asidePays(jobs); saves {
			s.train.openAside(k, jobs, group)
			clear(s.train.aside[:size])
		} else {
			s.train.openInPlace(k, jobs, group)
		}
		clear(jobs)
	}
}

// asidePays tells whether one-time keys and texts together take a pass fewer than one after the other, and no more text
// than can be copied for that.
func asidePays(jobs []polyJob) (size int, saves bool) {
	blocks := 0
	for i := range jobs {
		size += jobs[i].n
		blocks += (jobs[i].n + 63) / 64
	}
	passes := func(n int) int { return (n + 15) / 16 }
	return size, size <= asideLen && passes(len(jobs)+blocks) < passes(len(jobs))+passes(blocks)
}

func (s *trainScratch) openInPlace(k *secret, jobs []polyJob, group []Message) {
	s.chacha(k, jobs, wantKey)
	polyTags512(jobs)
	for i := range group {
		if group[i].Valid = matches(&jobs[i], &group[i]); !group[i].Valid {
			jobs[i].n = 0
		}
	}
	s.chacha(k, jobs, wantText)
}

// openAside decrypts copies in the passes that make the one-time keys, and hands out those that prove authentic.
func (s *trainScratch) openAside(k *secret, jobs []polyJob, group []Message) {
	rest := s.aside[:]
	for i := range jobs {
		if n := jobs[i].n; n > 0 {
			copy(rest, group[i].Text[:n])
			jobs[i].text, rest = &rest[0], rest[n:]
		}
	}
	s.chacha(k, jobs, wantKey|wantText)
	for i := range jobs {
		if jobs[i].n > 0 {
			jobs[i].text = &group[i].Text[0]
		}
	}
	polyTags512(jobs)
	rest = s.aside[:]
	for i := range group {
		if group[i].Valid = matches(&jobs[i], &group[i]); group[i].Valid {
			copy(group[i].Text, rest[:jobs[i].n])
		}
		rest = rest[jobs[i].n:]
	}
}

func matches(j *polyJob, m *Message) bool {
	n := len(m.Text) - TagLen
	return n >= 0 && subtle.ConstantTimeCompare(j.tag[:], m.Text[n:]) == 1
}

// set makes a job of each message; one that is too short gets an empty text.
func (s *trainScratch) set(group []Message) []polyJob {
	jobs := s.jobs[:len(group)]
	for i := range group {
		s.nonces[i] = group[i].Counter
		if n := len(group[i].Text) - TagLen; n > 0 {
			jobs[i].text, jobs[i].n = &group[i].Text[0], n
		}
	}
	return jobs
}

func (s *trainScratch) chacha(k *secret, jobs []polyJob, what uint64) {
	chachaLanes512(&k.state, &jobs[0], &s.nonces[0], len(jobs), what, &s.area[0])
}

// passes tells whether i seals as Generic does and opens what that sealed: a CPU or an emulator that claims what it
// cannot do must not lose packets.
func passes(i *implementation) bool {
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
