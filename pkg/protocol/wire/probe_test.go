// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// paddedProbe returns the plaintext of a probe, that of a ProbeSize of its size.
func paddedProbe(p Probe) []byte {
	b := AppendProbe(nil, &p)
	if p.Kind != ProbeSize {
		return b
	}
	return append(b, make([]byte, p.Size-len(b))...)
}

func sampleProbes() []Probe {
	return []Probe{
		{ID: 1, Size: MinProbeSize},
		{ID: 2, Size: 1432},
		{Kind: ProbeAnswer, ID: 3, Size: 0xffff},
		{Kind: ProbeRequest, ID: 4, Size: MinProbeSize},
		{Kind: ProbePort, ID: 5, Size: MinProbeSize},
		{Kind: ProbeReport, ID: 6, Size: MinProbeSize, Received: 1<<32 - 1},
		{Kind: ProbeReport, ID: 7, Size: MinProbeSize, Received: 9, Counted: true, Ports: []PortCount{{61000, 0x01020304}, {61999, 1}}},
		{Kind: ProbeReport, ID: 8, Size: MinProbeSize, Counted: true, Ports: slices.Repeat([]PortCount{{1, 2}}, MaxHelloPorts)},
	}
}

func TestProbeLayout(t *testing.T) {
	for want, p := range map[string]Probe{
		"0072776d0100dc0504030201": {ID: 0x01020304, Size: 1500},
		"0072776d0101ffff07000000": {Kind: ProbeAnswer, ID: 7, Size: 0xffff},
		"0072776d01030c00070000000900000001" + "02" + "48ee04030201" + "2ff201000000": sampleProbes()[6],
	} {
		if got := hex.EncodeToString(AppendProbe(nil, &p)); got != want {
			t.Errorf("%+v: got %s, want %s", p, got, want)
		}
	}
}

func TestProbeRoundTrip(t *testing.T) {
	for _, p := range sampleProbes() {
		b := paddedProbe(p)
		for range 2 { // without and with WireGuard's padding
			var got Probe
			err := ParseProbe(b, &got)
			if diff := cmp.Diff(p, got, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("%v: got error %v, diff %s", p.Kind, err, diff)
			}
			if !IsProbe(b) || !IsControl(b) || IsHello(b) {
				t.Errorf("%x is not recognized", b)
			}
			if p.Kind != ProbeSize {
				b = append(b, make([]byte, 15)...)
			}
		}
	}
}

func TestInvalidProbeIsMalformed(t *testing.T) {
	var p Probe
	for _, sample := range sampleProbes() {
		whole := paddedProbe(sample)
		for n := range whole {
			if err := ParseProbe(whole[:n], &p); !errors.Is(err, ErrProbeMalformed) {
				t.Errorf("%d bytes of %d: got error %v, want %v", n, len(whole), err, ErrProbeMalformed)
			}
		}
	}
	report := slices.Concat(AppendProbe(nil, &sampleProbes()[6]), make([]byte, 1000))
	for name, b := range map[string][]byte{
		"a byte too many": append(paddedProbe(sampleProbes()[1]), 0),
		"unknown kind":    replaced(report, flagsAt, probeKinds),
		"too small":       replaced(report, probeSizeAt, MinProbeSize-1),
		"too many ports":  replaced(report, probeNumberAt, MaxHelloPorts+1),
		"version 0":       replaced(report, versionAt, 0),
	} {
		if err := ParseProbe(b, &p); !errors.Is(err, ErrProbeMalformed) {
			t.Errorf("%s: got error %v, want %v", name, err, ErrProbeMalformed)
		}
	}
}

// replaced returns a copy of b with another byte.
func replaced(b []byte, at int, value byte) []byte {
	b = bytes.Clone(b)
	b[at] = value
	return b
}

func TestLaterProbeVersionIsNotMalformed(t *testing.T) {
	var p Probe
	if err := ParseProbe([]byte("\x00rwm\x02"), &p); !errors.Is(err, ErrProbeVersion) {
		t.Errorf("got error %v, want %v", err, ErrProbeVersion)
	}
}

// FuzzParseProbe checks that what is accepted says the same when it is sent on.
func FuzzParseProbe(f *testing.F) {
	for _, p := range sampleProbes() {
		f.Add(paddedProbe(p))
	}
	f.Add([]byte("\x00rwm\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var p, again Probe
		if ParseProbe(b, &p) != nil {
			return
		}
		out := paddedProbe(p)
		if err := ParseProbe(out, &again); err != nil || !bytes.Equal(out, paddedProbe(again)) {
			t.Errorf("%x becomes %x, error %v", b, out, err)
		}
		if !bytes.Equal(out[:4], b[:4]) {
			t.Errorf("%x begins with another magic", out)
		}
	})
}
