// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"
)

// kemMessage returns a message of a kind whose bytes count.
func kemMessage(kind KEMKind) []byte {
	b := make([]byte, kind.Size())
	for i := range b {
		b[i] = byte(i + i>>8)
	}
	return b
}

// padKEMPart returns the plaintext of a part as the engine sends it.
func padKEMPart(b []byte) []byte {
	return append(b, make([]byte, -len(b)&(PaddingMultiple-1))...)
}

func TestKEMPartLayout(t *testing.T) {
	for _, tc := range []struct {
		kind   KEMKind
		part   int
		header string
		size   int // of the UDP payload
	}{
		{KEMKey, 0, "00727771 01 00 01 01 00 03 9001", 448},
		{KEMKey, 1, "00727771 01 00 01 01 01 03 9001", 448},
		{KEMKey, 2, "00727771 01 00 01 01 02 03 8001", 432},
		{KEMCiphertext, 0, "00727771 01 00 02 01 00 03 9001", 448},
		{KEMCiphertext, 1, "00727771 01 00 02 01 01 03 9001", 448},
		{KEMCiphertext, 2, "00727771 01 00 02 01 02 03 3001", 352},
	} {
		message := kemMessage(tc.kind)
		b := padKEMPart(AppendKEMPart(nil, tc.kind, message, tc.part))
		want, _ := hex.DecodeString(string(bytes.ReplaceAll([]byte(tc.header), []byte(" "), nil)))
		if !bytes.HasPrefix(b, want) || len(b)+DataOverhead != tc.size {
			t.Errorf("part %d of kind %d: got header %x and %d bytes of UDP, want %x and %d", tc.part, tc.kind, b[:12], len(b)+DataOverhead, want, tc.size)
		}
		if !IsControl(b) || !IsKEMPart(b) || IsHello(b) || IsProbe(b) {
			t.Errorf("part %d of kind %d is not recognized", tc.part, tc.kind)
		}
		var got KEMPart
		from, to := tc.kind.span(tc.part)
		if err := ParseKEMPart(b, &got); err != nil || got.Kind != tc.kind || got.Part != tc.part || !bytes.Equal(got.Data, message[from:to]) {
			t.Errorf("part %d of kind %d: got part %d of kind %d with %d bytes and error %v", tc.part, tc.kind, got.Part, got.Kind, len(got.Data), err)
		}
	}
}

func TestKEMPartsMakeTheMessage(t *testing.T) {
	for _, kind := range []KEMKind{KEMKey, KEMCiphertext} {
		var got []byte
		for part := range KEMParts {
			var p KEMPart
			if err := ParseKEMPart(AppendKEMPart(nil, kind, kemMessage(kind), part), &p); err != nil {
				t.Fatal(err)
			}
			got = append(got, p.Data...)
		}
		if !bytes.Equal(got, kemMessage(kind)) {
			t.Errorf("kind %d: the parts do not make the message", kind)
		}
	}
}

// TestTruncatedKEMPartIsMalformed tries all lengths.
func TestTruncatedKEMPartIsMalformed(t *testing.T) {
	for _, kind := range []KEMKind{KEMKey, KEMCiphertext} {
		for part := range KEMParts {
			whole := AppendKEMPart(nil, kind, kemMessage(kind), part)
			padded := append(bytes.Clone(whole), make([]byte, 500-len(whole))...)
			for n := range padded {
				var p KEMPart
				err := ParseKEMPart(padded[:n], &p)
				if want := n < len(whole); want != errors.Is(err, ErrKEMMalformed) {
					t.Errorf("part %d of kind %d, %d bytes: got error %v, want malformed %v", part, kind, n, err, want)
				}
			}
		}
	}
}

func TestKEMPartWithOneFieldChanged(t *testing.T) {
	for _, tc := range []struct {
		at    int
		value byte
		want  error
	}{
		{0, 1, ErrKEMMalformed},
		{3, 'r', ErrKEMMalformed},
		{versionAt, 0, ErrKEMMalformed},
		{versionAt, 2, ErrKEMVersion},
		{flagsAt, 0xff, nil},
		{kemKindAt, 0, ErrKEMVersion},
		{kemKindAt, 3, ErrKEMVersion},
		{kemSuiteAt, 0, ErrKEMVersion},
		{kemSuiteAt, 2, ErrKEMVersion},
		{kemPartAt, 3, ErrKEMMalformed},
		{kemPartAt, 2, ErrKEMMalformed}, // whose data is shorter
		{kemPartAt, 0, nil},             // of the same length
		{kemPartsAt, 2, ErrKEMMalformed},
		{kemPartsAt, 4, ErrKEMMalformed},
		{kemLengthAt, 0x91, ErrKEMMalformed},
		{kemLengthAt, 0x8f, ErrKEMMalformed},
		{kemLengthAt + 1, 0, ErrKEMMalformed},
		{kemLengthAt + 1, 0xff, ErrKEMMalformed},
	} {
		b := padKEMPart(AppendKEMPart(nil, KEMKey, kemMessage(KEMKey), 1))
		b[tc.at] = tc.value
		var p KEMPart
		if err := ParseKEMPart(b, &p); !errors.Is(err, tc.want) {
			t.Errorf("byte %d is %#x: got error %v, want %v", tc.at, tc.value, err, tc.want)
		}
	}
}

func TestKEMPartsAllocateNothing(t *testing.T) {
	message, b := kemMessage(KEMKey), make([]byte, 0, 512)
	var p KEMPart
	if n := testing.AllocsPerRun(100, func() {
		b = AppendKEMPart(b[:0], KEMKey, message, 1)
		_ = ParseKEMPart(b, &p)
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// FuzzParseKEMPart checks that what is accepted says the same when it is sent on, and that parsing stays in bounds.
func FuzzParseKEMPart(f *testing.F) {
	for _, kind := range []KEMKind{KEMKey, KEMCiphertext} {
		for part := range KEMParts {
			b := AppendKEMPart(nil, kind, kemMessage(kind), part)
			f.Add(b)
			f.Add(padKEMPart(b))
			f.Add(b[:len(b)-1])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p KEMPart
		if ParseKEMPart(b, &p) != nil {
			return
		}
		message := make([]byte, p.Kind.Size())
		copy(message[p.Part*KEMPartSize:], p.Data)
		again := AppendKEMPart(nil, p.Kind, message, p.Part)
		again[flagsAt] = b[flagsAt]
		if !bytes.HasPrefix(b, again) {
			t.Fatalf("%x is sent on as %x", b, again)
		}
	})
}
