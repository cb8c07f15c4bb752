// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"
)

func TestEvery64BytesHoldTheMarker(t *testing.T) {
	p := build(header{key: 3, size: chunkLen}, 1, newBody(3))
	const least = markerStep + len(Marker) - 1
	for i := 0; i+least <= len(p); i++ {
		if !bytes.Contains(p[i:i+least], []byte(Marker)) {
			t.Fatalf("no marker from byte %d on", i)
		}
	}
}

func TestBodiesOfTwoRunsDiffer(t *testing.T) {
	if bytes.Equal(newBody(1), newBody(2)) || !bytes.Equal(newBody(1), newBody(1)) {
		t.Error("the body does not depend on the key alone")
	}
}

func TestVerifierAcceptsTheStreamInAnyPieces(t *testing.T) {
	body := newBody(9)
	stream := build(header{key: 9, stream: 4, size: chunkLen}, 5, body)
	stamp(stream, chunkLen, 0)
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		v := newVerifier(9, 4, body)
		for rest := stream; len(rest) > 0; {
			n := min(1+rnd.IntN(100_000), len(rest))
			if !v.check(rest[:n]) {
				t.Fatal("a valid stream was rejected")
			}
			rest = rest[n:]
		}
	}
}

func TestVerifierDetectsCorruption(t *testing.T) {
	body := newBody(9)
	good := build(header{key: 9, size: chunkLen}, 4, body)
	stamp(good, chunkLen, 0)
	other := build(header{key: 10, size: chunkLen}, 4, newBody(10))
	cut := func(from, to int) []byte { return append(append([]byte(nil), good[:from]...), good[to:]...) }
	flip := func(at int) []byte {
		p := append([]byte(nil), good...)
		p[at] ^= 0x10
		return p
	}
	for name, p := range map[string][]byte{
		"a flipped bit in a header": flip(chunkLen + 20),
		"a flipped bit in a body":   flip(2*chunkLen + 4000),
		"the last byte":             flip(len(good) - 1),
		"1380 bytes missing":        cut(10_000, 11_380),
		"64 bytes missing":          cut(640, 704),
		"a whole chunk missing":     cut(chunkLen, 2*chunkLen),
		"a chunk twice":             append(append([]byte(nil), good[:chunkLen]...), good...),
		"another run's stream":      other,
		"zeros":                     make([]byte, 100),
	} {
		if newVerifier(9, 0, body).check(p) {
			t.Errorf("%s was not detected", name)
		}
	}
}

func TestDatagramsAreVerified(t *testing.T) {
	body := newBody(5)
	mk := func(h header, change func([]byte)) []byte {
		p := build(h, 1, body)
		setSeq(p, h.seq)
		change(p)
		return p
	}
	keep := func([]byte) {}
	h := header{key: 5, stream: 1, size: 100, seq: 3}
	for _, c := range []struct {
		name string
		p    []byte
		want Counts
	}{
		{"valid", mk(h, keep), Counts{Packets: 1, Bytes: 100}},
		{"altered", mk(h, func(p []byte) { p[99]++ }), Counts{Corrupt: 1}},
		{"marker altered", mk(h, func(p []byte) { p[0]++ }), Counts{Corrupt: 1}},
		{"truncated", mk(h, keep)[:99], Counts{Corrupt: 1}},
		{"shorter than a header", mk(h, keep)[:10], Counts{Corrupt: 1}},
		{"another stream's", mk(header{key: 5, stream: 2, size: 100}, keep), Counts{Corrupt: 1}},
		{"another run's", mk(header{key: 6, stream: 1, size: 100}, keep), Counts{}},
		{
			"two in a train", append(mk(h, keep), mk(header{key: 5, stream: 1, size: 100, seq: 4}, keep)...),
			Counts{Packets: 2, Bytes: 200},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got counters
			d := &datagramReceiver{head: header{key: 5, stream: 1}, body: body, counters: &got}
			d.countTrain(c.p, 100)
			d.publish()
			if got.counts() != c.want {
				t.Errorf("got %+v, want %+v", got.counts(), c.want)
			}
		})
	}
}

// referenceSequence is a simple implementation of sequence, without a window of bits.
type referenceSequence struct {
	seen                          map[uint64]bool
	next                          uint64
	unique, reordered, duplicated uint64
}

func (s *referenceSequence) observe(seq uint64) {
	old := seq < s.next && s.next-seq > window
	if s.seen[seq] && !old {
		s.duplicated++
		return
	}
	if seq < s.next {
		s.reordered++
	}
	s.seen[seq] = true
	s.unique++
	s.next = max(s.next, seq+1)
}

func TestSequenceMatchesReferenceImplementation(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		fast, slow := &sequence{}, &referenceSequence{seen: map[uint64]bool{}}
		at := uint64(0)
		for i := range 20_000 {
			switch rnd.IntN(20) {
			case 0: // a loss, now and then larger than the window
				at += uint64(rnd.IntN(100)) << rnd.IntN(12)
			case 1: // a step back, now and then beyond the window
				at -= min(at, uint64(rnd.IntN(100))<<rnd.IntN(12))
			default:
				at++
			}
			fast.observe(at)
			slow.observe(at)
			if fast.unique != slow.unique || fast.reordered != slow.reordered || fast.duplicated != slow.duplicated {
				t.Fatalf("seed %d, step %d, number %d: got %d %d %d, want %d %d %d", seed, i, at, fast.unique, fast.reordered,
					fast.duplicated, slow.unique, slow.reordered, slow.duplicated)
			}
		}
	}
}

func TestPaceKeepsTheRate(t *testing.T) {
	start := time.Unix(1000, 0)
	now := start
	p := newPace(8e6, start) // one byte per microsecond
	for range 1000 {
		now = now.Add(p.delay(now, 1000))
	}
	if got := now.Sub(start); got != 999*time.Millisecond {
		t.Errorf("1000 sends took %s, want 999ms", got)
	}
}

func TestPaceLimitsCatchUp(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPace(8e6, now)
	now = now.Add(time.Hour)
	burst := 0
	for p.delay(now, 1000) == 0 {
		burst++
	}
	if burst != 6 { // 5 in maxCatchUp, and the one that is due
		t.Errorf("got %d sends without a delay, want 6", burst)
	}
}

func TestNoRateMeansNoWaiting(t *testing.T) {
	p := newPace(0, time.Unix(1000, 0))
	if w := p.delay(time.Unix(0, 0), 1<<30); w != 0 {
		t.Errorf("got a delay of %s, want none", w)
	}
}

func FuzzDatagrams(f *testing.F) {
	body := newBody(1)
	good := build(header{key: 1, size: 100}, 2, body)
	f.Add(good, 100)
	f.Add(good[:150], 100)
	f.Add([]byte(Marker), 1)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, p []byte, segSize int) {
		if segSize < 1 {
			segSize = max(len(p), 1)
		}
		var got counters
		d := &datagramReceiver{head: header{key: 1}, body: body, counters: &got}
		d.countTrain(p, segSize)
		d.publish()
		if c := got.counts(); c.Bytes > uint64(len(p)) {
			t.Errorf("%d bytes counted of %d", c.Bytes, len(p))
		}
	})
}

func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"open":{"key":1,"kind":"udp","streams":2,"size":100}}`))
	f.Add([]byte(`{"done":{"sent":[1,2]}}`))
	f.Add([]byte(`{"error":"no"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parseMessage(line)
		if err != nil || m.Open == nil {
			return
		}
		if r, err := newServerRun(*m.Open); err == nil && (len(r.counters) < 1 || len(r.counters) > MaxStreams) {
			t.Errorf("%d streams", len(r.counters))
		}
	})
}
