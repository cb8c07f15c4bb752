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

// MinProbeSize is the length of the shortest plaintext of a probe, in bytes.
const MinProbeSize = 12

// Errors of ParseProbe.
var (
	ErrProbeMalformed = errors.New("malformed path MTU probe")          // not a probe, truncated, or an invalid field
	ErrProbeVersion   = errors.New("path MTU probe of another version") // a later version; the receiver ignores it
)

// Offsets in a probe after its header: size 2, ID 4. Zeros follow up to the size; the answer has WireGuard's padding.
const (
	probeSizeAt = 6
	probeIDAt   = 8
)

var probeHeader = header{probeMagic, 1, MinProbeSize, ErrProbeMalformed, ErrProbeVersion}

// AppendProbe appends p, without the zeros that follow, and returns the extended slice.
func AppendProbe(b []byte, p *Probe) []byte {
	flags := byte(0)
	if p.Answer {
		flags = flagAnswer
	}
	b = binary.LittleEndian.AppendUint16(probeHeader.append(b, flags), uint16(p.Size))
	return binary.LittleEndian.AppendUint32(b, p.ID)
}

// ParseProbe parses a decrypted data message into p. The error is ErrProbeMalformed or ErrProbeVersion; then p must not be used.
func ParseProbe(plain []byte, p *Probe) error {
	if err := probeHeader.check(plain); err != nil {
		return err
	}
	le := binary.LittleEndian
	*p = Probe{
		Answer: plain[flagsAt]&flagAnswer != 0, ID: le.Uint32(plain[probeIDAt:]), Size: int(le.Uint16(plain[probeSizeAt:])),
	}
	if p.Size < MinProbeSize || !p.Answer && p.Size != len(plain) {
		return ErrProbeMalformed
	}
	return nil
}
