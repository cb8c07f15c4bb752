// SPDX-License-Identifier: Apache-2.0

//go:build !purego

package chachapoly

const (
	// maxGroup is the most messages that are authenticated while others are encrypted or decrypted.
	maxGroup = 8

	// macUnit is the number of bytes that general registers authenticate in a double round, as in
	// _asm/mac256.go.
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
	macs [maxGroup]polyMAC
	runs [maxGroup]macRun
}

// fusedCipher takes trains of long messages in groups. While vectors encrypt or decrypt a group, general registers
// authenticate another one.
type fusedCipher struct{ trainCipher }

// groupLen returns the number of messages in a group: fewer of long ones, so that less remains for
// the last group. It is 0 if a set is too small, or its messages too short on average.
// BenchmarkSets measures the crossovers.
func groupLen(msgs []Message) (size int) {
	bytes := 0
	for i := range msgs {
		bytes += len(msgs[i].Text)
	}
	switch mean := bytes / max(len(msgs), 1); {
	case mean >= 1024:
		size = maxGroup / 2
	case mean >= 400:
		size = maxGroup
	}
	if len(msgs) < 2*size {
		return 0
	}
	return size
}

// seal encrypts each group while it authenticates the one before.
func (c *fusedCipher) seal(k *secret, s *Scratch, msgs []Message) {
	size := groupLen(msgs)
	if size == 0 {
		c.trainCipher.seal(k, s, msgs)
		return
	}
	v, last, at := &s.vector, group{}, 0
	for len(msgs) > 0 {
		g := v.group(at, msgs[:min(size, len(msgs))])
		msgs, at = msgs[len(g.msgs):], size-at
		v.fused(k, g, wantKey|wantText, last.jobs)
		last.putTags()
		last = g
	}
	c.tags(v, last.jobs)
	last.putTags()
	clear(s.vector.jobs[:2*size])
}

// open authenticates each group while it decrypts the one before.
func (c *fusedCipher) open(k *secret, s *Scratch, msgs []Message) {
	size := groupLen(msgs)
	if size == 0 {
		c.trainCipher.open(k, s, msgs)
		return
	}
	v := &s.vector
	for len(msgs) > 0 {
		all := v.group(0, msgs[:min(batchLen, len(msgs))])
		msgs = msgs[len(all.msgs):]
		c.chacha(k, v, all.jobs, wantKey)
		last := all.part(0, size)
		c.tags(v, last.jobs)
		last.setValid()
		for at := size; at < len(all.jobs); at += size {
			g := all.part(at, size)
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

// part is at most size messages of g from an index on.
func (g group) part(at, size int) group {
	end := min(at+size, len(g.jobs))
	return group{g.msgs[at:end], g.jobs[at:end], g.nonces[at:end]}
}

func (g group) putTags() { putTags(g.jobs, g.msgs) }

func (g group) setValid() { setValid(g.jobs, g.msgs) }

// fused runs ChaCha20 over the jobs of g and computes the tags of other jobs, at most maxGroup.
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
