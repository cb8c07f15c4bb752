// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

import "crypto/subtle"

const (
	// batchLen is the number of messages that are encrypted and authenticated together. 16 to 64 are equally fast.
	batchLen = 32

	// copyLen is the largest text in bytes for which copying is worthwhile to save a pass of ChaCha20: see openCopies.
	copyLen = 1536
)

const (
	wantKey  = 1 // write each job's one-time key
	wantText = 2 // xor the keystream into each job's text
)

// trainCipher seals and opens messages together with two kernels in assembly.
type trainCipher struct {
	blocks int                                                            // of ChaCha20 in one pass
	chacha func(k *secret, s *vectorScratch, jobs []polyJob, what uint64) // with the nonces of s
	tags   func(s *vectorScratch, jobs []polyJob)                         // from keys and texts; any number of jobs
}

type vectorScratch struct {
	jobs   [batchLen]polyJob
	nonces [batchLen]uint64
	area   [areaLen]byte
	copies [copyLen]byte
	poly   polyScratch
	fuse   fusedScratch
}

func (t *trainCipher) seal(k *secret, s *Scratch, msgs []Message) {
	for len(msgs) > 0 {
		batch := msgs[:min(batchLen, len(msgs))]
		msgs = msgs[len(batch):]
		jobs := s.vector.set(0, batch)
		t.chacha(k, &s.vector, jobs, wantKey|wantText)
		t.tags(&s.vector, jobs)
		putTags(jobs, batch)
		clear(jobs)
	}
}

func (t *trainCipher) open(k *secret, s *Scratch, msgs []Message) {
	for len(msgs) > 0 {
		batch := msgs[:min(batchLen, len(msgs))]
		msgs = msgs[len(batch):]
		jobs := s.vector.set(0, batch)
		if size, saves := t.copiesSavePass(jobs); saves {
			t.openCopies(k, &s.vector, jobs, batch)
			clear(s.vector.copies[:size])
		} else {
			t.openInPlace(k, &s.vector, jobs, batch)
		}
		clear(jobs)
	}
}

// copiesSavePass reports whether computing one-time keys and texts together takes a pass less than
// one after the other. It is false if there is more text than is worth copying for that.
func (t *trainCipher) copiesSavePass(jobs []polyJob) (size int, saves bool) {
	blocks := 0
	for i := range jobs {
		size += jobs[i].n
		blocks += (jobs[i].n + 63) / 64
	}
	passes := func(n int) int { return (n + t.blocks - 1) / t.blocks }
	return size, size <= copyLen && passes(len(jobs)+blocks) < passes(len(jobs))+passes(blocks)
}

func (t *trainCipher) openInPlace(k *secret, s *vectorScratch, jobs []polyJob, batch []Message) {
	t.chacha(k, s, jobs, wantKey)
	t.tags(s, jobs)
	setValid(jobs, batch)
	t.chacha(k, s, jobs, wantText)
}

// openCopies decrypts copies in the passes that compute the one-time keys, and copies the
// authentic texts back.
func (t *trainCipher) openCopies(k *secret, s *vectorScratch, jobs []polyJob, batch []Message) {
	rest := s.copies[:]
	for i := range jobs {
		if n := jobs[i].n; n > 0 {
			copy(rest, batch[i].Text[:n])
			jobs[i].text, rest = &rest[0], rest[n:]
		}
	}
	t.chacha(k, s, jobs, wantKey|wantText)
	for i := range jobs {
		if jobs[i].n > 0 {
			jobs[i].text = &batch[i].Text[0]
		}
	}
	t.tags(s, jobs)
	rest = s.copies[:]
	for i := range batch {
		if batch[i].Valid = matches(&jobs[i], &batch[i]); batch[i].Valid {
			copy(batch[i].Text, rest[:jobs[i].n])
		}
		rest = rest[jobs[i].n:]
	}
}

func putTags(jobs []polyJob, batch []Message) {
	for i := range batch {
		if n := len(batch[i].Text) - TagLen; n >= 0 {
			*(*[TagLen]byte)(batch[i].Text[n:]) = jobs[i].tag
		}
	}
}

// setValid compares tags. The job of an invalid message has no text any more.
func setValid(jobs []polyJob, batch []Message) {
	for i := range batch {
		if batch[i].Valid = matches(&jobs[i], &batch[i]); !batch[i].Valid {
			jobs[i].n = 0
		}
	}
}

func matches(j *polyJob, m *Message) bool {
	n := len(m.Text) - TagLen
	return n >= 0 && subtle.ConstantTimeCompare(j.tag[:], m.Text[n:]) == 1
}

// set creates a job for each message, from an index on; a message that is too short gets an empty text.
func (s *vectorScratch) set(at int, batch []Message) []polyJob {
	jobs := s.jobs[at : at+len(batch)]
	for i := range batch {
		s.nonces[at+i] = batch[i].Counter
		if n := len(batch[i].Text) - TagLen; n > 0 {
			jobs[i].text, jobs[i].n = &batch[i].Text[0], n
		}
	}
	return jobs
}
