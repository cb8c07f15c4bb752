// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
)

// Probe is the plaintext of a data message that tests the path to a peer, or of the answer to one. Like a hello, no stock peer takes it for
// an IP packet. It is sent only to peers whose hello has Probes set.
type Probe struct {
	Kind ProbeKind
	ID   uint32 // chosen by the prober; an answer repeats it
	Size int    // of the prober's plaintext, in bytes; an answer repeats it

	// The following fields belong to a ProbeReport.
	Received uint32      // messages that have arrived from the prober, modulo 2^32
	Counted  bool        // Ports is valid: messages from other ports than the listen port are counted
	Ports    []PortCount // at most MaxHelloPorts
}

// PortCount is the number of messages from one source port, modulo 2^32.
type PortCount struct {
	Port     uint16
	Messages uint32
}

// ProbeKind is the kind of a probe: a test, a request or an answer.
type ProbeKind uint8

// The kinds of probes.
const (
	ProbeSize    ProbeKind = iota // tests the path MTU (RFC 8899, section 6.3): it has that size, and asks for a ProbeAnswer
	ProbeAnswer                   // to a ProbeSize
	ProbeRequest                  // asks for a ProbeReport
	ProbeReport                   // to a ProbeRequest
	ProbePort                     // is counted, as each message is, and asks for nothing
	probeKinds   = iota
)

// MinProbeSize is the length of the shortest plaintext of a probe, in bytes.
const MinProbeSize = 12

// Errors of ParseProbe.
var (
	ErrProbeMalformed = errors.New("malformed probe")          // not a probe, truncated, or an invalid field
	ErrProbeVersion   = errors.New("probe of another version") // a later version; the receiver ignores it
)

// Offsets in a probe after its header, which has the kind in place of flags: size 2, ID 4. Zeros follow up to the size of a ProbeSize. In a
// ProbeReport: messages 4, flags 1, number of ports 1, ports 6 each.
const (
	probeSizeAt     = 6
	probeIDAt       = 8
	probeReceivedAt = MinProbeSize
	probeFlagsAt    = 16
	probeNumberAt   = 17
	probePortsAt    = 18
	probePortSize   = 6
)

// probeCounted is the only flag of a ProbeReport. Unknown flags are ignored.
const probeCounted = 1

var probeHeader = header{probeMagic, 1, MinProbeSize, ErrProbeMalformed, ErrProbeVersion}

// AppendProbe appends p, without the zeros that follow, and returns the extended slice. It truncates the ports to MaxHelloPorts.
func AppendProbe(b []byte, p *Probe) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(probeHeader.append(b, byte(p.Kind)), uint16(p.Size))
	b = le.AppendUint32(b, p.ID)
	if p.Kind != ProbeReport {
		return b
	}
	ports, flags := p.Ports[:min(len(p.Ports), MaxHelloPorts)], byte(0)
	if p.Counted {
		flags = probeCounted
	}
	b = append(le.AppendUint32(b, p.Received), flags, byte(len(ports)))
	for _, c := range ports {
		b = le.AppendUint32(le.AppendUint16(b, c.Port), c.Messages)
	}
	return b
}

// ParseProbe parses a decrypted data message into p. It reuses the memory of p.Ports. The error is ErrProbeMalformed or ErrProbeVersion; then
// p must not be used.
func ParseProbe(plain []byte, p *Probe) error {
	if err := probeHeader.check(plain); err != nil {
		return err
	}
	le := binary.LittleEndian
	*p = Probe{
		Kind: ProbeKind(plain[flagsAt]), ID: le.Uint32(plain[probeIDAt:]), Size: int(le.Uint16(plain[probeSizeAt:])), Ports: p.Ports[:0],
	}
	switch {
	case p.Kind >= probeKinds, p.Size < MinProbeSize, p.Kind == ProbeSize && p.Size != len(plain):
		return ErrProbeMalformed
	case p.Kind == ProbeReport:
		return p.parseReport(plain)
	}
	return nil
}

func (p *Probe) parseReport(plain []byte) error {
	if len(plain) < probePortsAt || int(plain[probeNumberAt]) > MaxHelloPorts {
		return ErrProbeMalformed
	}
	end := probePortsAt + probePortSize*int(plain[probeNumberAt])
	if end > len(plain) {
		return ErrProbeMalformed
	}
	le := binary.LittleEndian
	p.Received, p.Counted = le.Uint32(plain[probeReceivedAt:]), plain[probeFlagsAt]&probeCounted != 0
	for at := probePortsAt; at < end; at += probePortSize {
		p.Ports = append(p.Ports, PortCount{le.Uint16(plain[at:]), le.Uint32(plain[at+2:])})
	}
	return nil
}
