// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func sampleChecks() []Check {
	return []Check{
		{Source: 0, Round: 7, Ages: []byte{}},
		{Source: MaxHelloPorts - 1, Round: 1<<32 - 1, Ages: []byte{}},
		{Source: ListenPortSource, Round: 1, Ages: []byte{}},
		{Answer: true, Source: ListenPortSource, Round: 0x01020304, Ages: []byte{0, 3, spread.NeverArrived}},
		{Answer: true, Source: ListenPortSource, Round: 2, Ages: slices.Repeat([]byte{1}, MaxHelloPorts)},
	}
}

func TestCheckLayout(t *testing.T) {
	const want = "0072776301" + "01ff03" + "04030201" + "0003ff"
	if got := hex.EncodeToString(AppendCheck(nil, &sampleChecks()[3])); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestCheckRoundTrip(t *testing.T) {
	for _, c := range sampleChecks() {
		b := AppendCheck(nil, &c)
		if len(b) > MaxCheckSize || !IsCheck(b) || !IsControl(b) || IsHello(b) || IsProbe(b) {
			t.Errorf("%x is not recognized", b)
		}
		for range 2 { // without and with padding
			var got Check
			err := ParseCheck(b, &got)
			if diff := cmp.Diff(c, got); err != nil || diff != "" {
				t.Errorf("got error %v, diff %s", err, diff)
			}
			b = append(b, make([]byte, 15)...)
		}
	}
}

func TestInvalidCheckIsMalformed(t *testing.T) {
	whole := AppendCheck(nil, &sampleChecks()[3])
	var c Check
	for n := range whole {
		if err := ParseCheck(whole[:n], &c); !errors.Is(err, ErrCheckMalformed) {
			t.Errorf("%d bytes of %d: got error %v, want %v", n, len(whole), err, ErrCheckMalformed)
		}
	}
	for name, corrupt := range map[string]func(b []byte){
		"version 0":             func(b []byte) { b[versionAt] = 0 },
		"too many ages":         func(b []byte) { b[checkCountAt] = MaxHelloPorts + 1 },
		"no such source":        func(b []byte) { b[checkSourceAt] = MaxHelloPorts },
		"an answer to a source": func(b []byte) { b[checkSourceAt] = 1 },
	} {
		b := append(slices.Clone(whole), make([]byte, 2*MaxHelloPorts)...)
		corrupt(b)
		if err := ParseCheck(b, &c); !errors.Is(err, ErrCheckMalformed) {
			t.Errorf("%s: got error %v, want %v", name, err, ErrCheckMalformed)
		}
	}
	if err := ParseCheck([]byte("\x00rwc\x02"), &c); !errors.Is(err, ErrCheckVersion) {
		t.Errorf("version 2: got error %v, want %v", err, ErrCheckVersion)
	}
}

// FuzzParseCheck checks that what is accepted says the same when it is sent on.
func FuzzParseCheck(f *testing.F) {
	for _, c := range sampleChecks() {
		f.Add(AppendCheck(nil, &c))
	}
	f.Add([]byte("\x00rwc\x02"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c, again Check
		if ParseCheck(b, &c) != nil {
			return
		}
		out := AppendCheck(nil, &c)
		if err := ParseCheck(out, &again); err != nil || !bytes.Equal(out, AppendCheck(nil, &again)) {
			t.Errorf("%x becomes %x, error %v", b, out, err)
		}
	})
}
