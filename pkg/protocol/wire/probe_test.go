// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

// paddedProbe returns the plaintext of a probe of its size.
func paddedProbe(p Probe) []byte {
	b := AppendProbe(nil, &p)
	return append(b, make([]byte, p.Size-len(b))...)
}

func TestProbeLayout(t *testing.T) {
	for want, p := range map[string]Probe{
		"0072776d0100dc0504030201": {ID: 0x01020304, Size: 1500},
		"0072776d0101ffff07000000": {Answer: true, ID: 7, Size: 0xffff},
	} {
		if got := hex.EncodeToString(AppendProbe(nil, &p)); got != want {
			t.Errorf("%+v: got %s, want %s", p, got, want)
		}
	}
}

func TestProbeRoundTrip(t *testing.T) {
	for _, p := range []Probe{{ID: 1, Size: MinProbeSize}, {ID: 2, Size: 1432}, {Answer: true, ID: 3, Size: 9000}} {
		b := paddedProbe(p)
		if p.Answer {
			b = b[:16]
		}
		var got Probe
		if err := ParseProbe(b, &got); err != nil || got != p {
			t.Errorf("got %+v and error %v, want %+v", got, err, p)
		}
		if !IsProbe(b) || !IsControl(b) || IsHello(b) {
			t.Errorf("%x is not recognized", b)
		}
	}
}

func TestShortenedProbeIsMalformed(t *testing.T) {
	b := paddedProbe(Probe{ID: 1, Size: 100})
	var p Probe
	for n := range b {
		if err := ParseProbe(b[:n], &p); !errors.Is(err, ErrProbeMalformed) {
			t.Errorf("%d bytes of %d: got error %v, want %v", n, len(b), err, ErrProbeMalformed)
		}
	}
	if err := ParseProbe(append(b, 0), &p); !errors.Is(err, ErrProbeMalformed) {
		t.Errorf("a byte too many: got error %v, want %v", err, ErrProbeMalformed)
	}
}

func TestLaterProbeVersionIsNotMalformed(t *testing.T) {
	var p Probe
	if err := ParseProbe([]byte("\x00rwm\x02"), &p); !errors.Is(err, ErrProbeVersion) {
		t.Errorf("got error %v, want %v", err, ErrProbeVersion)
	}
}

// FuzzParseProbe checks that what is accepted says the same when it is sent on.
func FuzzParseProbe(f *testing.F) {
	f.Add(paddedProbe(Probe{ID: 9, Size: 40}))
	f.Add(AppendProbe(nil, &Probe{Answer: true, ID: 9, Size: 1400}))
	f.Add([]byte("\x00rwm\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again Probe
		if ParseProbe(b, &p) != nil {
			return
		}
		out := AppendProbe(nil, &p)
		if !p.Answer {
			out = append(out, make([]byte, p.Size-len(out))...)
		}
		if err := ParseProbe(out, &again); err != nil || again != p {
			t.Errorf("%x: got %+v and error %v, want %+v", b, again, err, p)
		}
		if !bytes.Equal(out[:4], b[:4]) {
			t.Errorf("%x begins with another magic", out)
		}
	})
}
