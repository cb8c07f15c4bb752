// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

const (
	// fusedGroup is the number of messages that are authenticated while others are encrypted or decrypted.
	fusedGroup = 8

	// minFusedBytes is the mean size of messages from which that is faster than authenticating in vectors: BenchmarkSets
	// measures the crossover.
	minFusedBytes = 400

	// macUnit is what general registers authenticate in a double round, as in _asm/mac256.go.
	macUnit = 6 * 16
)

// macRun is a text to be authenticated, in units. The assembly code depends on the layout, and leaves those units that it
// has not reached.
type macRun struct {
	mac   *polyMAC
	text  *byte
	units int
}

type fusedScratch struct {
	macs [fusedGroup]polyMAC
	runs [fusedGroup]macRun
}

// fusedCipher takes trains of long messages in groups. While vectors encrypt or decrypt a group, general registers
// authenticate another one.
type fusedCipher struct{ trainCipher }

// suitsFused reports whether most of a set can be authenticated meanwhile, and is not too short for that.
func suitsFused(msgs []Message) bool {
	n := 0
	for i := range msgs {
		n += len(msgs[i].Text)
	}
	return len(msgs) >= 2*fusedGroup && n >= minFusedBytes*len(msgs)
}

// seal encrypts each group while it authenticates the one before.
func (c *fusedCipher) seal(k *secret, s *Scratch, msgs []Message) {
	if !suitsFused(msgs) {
		c.trainCipher.seal(k, s, msgs)
		return
	}
	v, last, at := &s.vector, group{}, 0
	for len(msgs) > 0 {
		g := v.group(at, msgs[:min(fusedGroup, len(msgs))])
		msgs, at = msgs[len(g.msgs):], fusedGroup-at
		v.fused(k, g, wantKey|wantText, last.jobs)
		last.putTags()
		last = g
	}
	c.tags(v, last.jobs)
	last.putTags()
	clear(s.vector.jobs[:2*fusedGroup])
}

// open authenticates each group while it decrypts the one before.
func (c *fusedCipher) open(k *secret, s *Scratch, msgs []Message) {
	if !suitsFused(msgs) {
		c.trainCipher.open(k, s, msgs)
		return
	}
	v := &s.vector
	for len(msgs) > 0 {
		all := v.group(0, msgs[:min(batchLen, len(msgs))])
		msgs = msgs[len(all.msgs):]
		c.chacha(k, v, all.jobs, wantKey)
		last := v.part(all, 0)
		c.tags(v, last.jobs)
		last.setValid()
		for at := fusedGroup; at < len(all.jobs); at += fusedGroup {
			g := v.part(all, at)
			v.fused(k, last, wantText, g.jobs)
			g.setValid()
			last = g
		}
		v.fused(k, last, wantText, nil)
		clear(all.jobs)
	}
}

// group is messages with their jobs and nonces.
type group struct {
	msgs   []Message
	jobs   []polyJob
	nonces []uint64
}

// group creates jobs from an index on.
func (s *vectorScratch) group(at int, msgs []Message) group {
	clear(s.jobs[at : at+len(msgs)])
	return group{msgs, s.set(at, msgs), s.nonces[at : at+len(msgs)]}
}

// part is the fused group of g from an index on.
func (s *vectorScratch) part(g group, at int) group {
	end := min(at+fusedGroup, len(g.jobs))
	return group{g.msgs[at:end], g.jobs[at:end], g.nonces[at:end]}
}

func (g group) putTags() { putTags(g.jobs, g.msgs) }

func (g group) setValid() { setValid(g.jobs, g.msgs) }

// fused runs ChaCha20 over the jobs of g and computes the tags of other jobs, at most fusedGroup.
func (s *vectorScratch) fused(k *secret, g group, what uint64, others []polyJob) {
	count := 0
	for i := range others {
		j := &others[i]
		s.fuse.macs[i].setKey(&j.key)
		if units := j.n / macUnit; units > 0 {
			s.fuse.runs[count] = macRun{&s.fuse.macs[i], j.text, units}
			count++
		}
	}
	chachaLanes256(&k.state, &g.jobs[0], &g.nonces[0], len(g.jobs), what, &s.area[0], &s.fuse.runs[0], count)
	run := 0
	for i := range others {
		j, left := &others[i], 0
		if units := j.n / macUnit; units > 0 {
			left = s.fuse.runs[run].units
			run++
		}
		s.fuse.macs[i].finish(j, (j.n/macUnit-left)*macUnit)
	}
	clear(s.fuse.macs[:len(others)])
	clear(s.fuse.runs[:count])
}
