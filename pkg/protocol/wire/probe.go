// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
)

// Probe is the plaintext of a data message that tests the path MTU (RFC 8899, section 6.3), or of the answer to one. Like a hello,
// no stock peer takes it for an IP packet. It is sent only to peers whose hello has Probes set.
type Probe struct {
	Answer bool   // it answers the probe of this ID and Size
	ID     uint32 // chosen by the prober
	Size   int    // of the probe's plaintext, in bytes; an answer is as small as a hello
}

// Limits of a probe's plaintext, in bytes.
const (
	MinProbeSize = 12
	MaxProbeSize = 0xffff
)

// Errors of ParseProbe.
var (
	ErrProbeMalformed = errors.New("malformed path MTU probe")          // not a probe, truncated, or an invalid field
	ErrProbeVersion   = errors.New("path MTU probe of another version") // a later version; the receiver ignores it
)

const probeVersion = 1

// probeMagic begins with a nibble that is no IP version. It differs from helloMagic in the last byte.
const probeMagic = "\x00rwm"

// Offsets in a probe: magic 4, version 1, flags 1, size 2, ID 4. Zeros follow up to the size; the answer has WireGuard's padding.
const (
	probeVersionAt = 4
	probeFlagsAt   = 5
	probeSizeAt    = 6
	probeIDAt      = 8
)

// probeAnswer is the only flag. Unknown flags are ignored.
const probeAnswer = 1

// IsProbe reports whether a decrypted data message is a probe or an answer of any version, well-formed or not.
func IsProbe(plain []byte) bool {
	return len(plain) >= len(probeMagic) && string(plain[:len(probeMagic)]) == probeMagic
}

// IsControl reports whether a decrypted data message is for the slow path: a hello, a probe, or a check of a source port.
func IsControl(plain []byte) bool {
	return len(plain) > 0 && plain[0] == 0 && (IsHello(plain) || IsProbe(plain) || IsCheck(plain))
}

// AppendProbe appends p, without the zeros that follow, and returns the extended slice.
func AppendProbe(b []byte, p *Probe) []byte {
	flags := byte(0)
	if p.Answer {
		flags = probeAnswer
	}
	b = append(b, probeMagic...)
	b = append(b, probeVersion, flags)
	b = binary.LittleEndian.AppendUint16(b, uint16(p.Size))
	return binary.LittleEndian.AppendUint32(b, p.ID)
}

// ParseProbe parses a decrypted data message into p. The error is ErrProbeMalformed or ErrProbeVersion; then p must not be used.
func ParseProbe(plain []byte, p *Probe) error {
	if !IsProbe(plain) || len(plain) <= probeVersionAt {
		return ErrProbeMalformed
	}
	if plain[probeVersionAt] > probeVersion {
		return ErrProbeVersion
	}
	if plain[probeVersionAt] != probeVersion || len(plain) < MinProbeSize {
		return ErrProbeMalformed
	}
	le := binary.LittleEndian
	*p = Probe{
		Answer: plain[probeFlagsAt]&probeAnswer != 0, ID: le.Uint32(plain[probeIDAt:]), Size: int(le.Uint16(plain[probeSizeAt:])),
	}
	if p.Size < MinProbeSize || !p.Answer && p.Size != len(plain) {
		return ErrProbeMalformed
	}
	return nil
}
