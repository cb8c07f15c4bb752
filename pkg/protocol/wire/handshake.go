// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// Initiation is a handshake's first message (paper §5.4.2):
// type 4, sender 4, ephemeral 32, static 32+16, timestamp 12+16, mac1 16, mac2 16.
type Initiation [InitiationSize]byte

// AsInitiation returns b as an Initiation that aliases it, or the reason to drop it: Classify's, or RXBadType.
func AsInitiation(b []byte) (*Initiation, drop.Reason) {
	if reason := expect(b, TypeInitiation); reason != drop.None {
		return nil, reason
	}
	return (*Initiation)(b), drop.None
}

// SetHeader writes the type and the sender index.
func (m *Initiation) SetHeader(sender uint32) {
	binary.LittleEndian.PutUint32(m[:], uint32(TypeInitiation))
	binary.LittleEndian.PutUint32(m[4:], sender)
}

// Sender is the initiator's receiver index.
func (m *Initiation) Sender() uint32 { return binary.LittleEndian.Uint32(m[4:]) }

// Ephemeral is the initiator's ephemeral public key.
func (m *Initiation) Ephemeral() *[KeyLen]byte { return (*[KeyLen]byte)(m[8:]) }

// Static is the initiator's static public key, encrypted.
func (m *Initiation) Static() []byte { return m[40 : 40+KeyLen+TagLen] }

// Timestamp is the TAI64N timestamp, encrypted.
func (m *Initiation) Timestamp() []byte { return m[88 : 88+TimestampLen+TagLen] }

// Response is a handshake's second message (paper §5.4.3):
// type 4, sender 4, receiver 4, ephemeral 32, empty 0+16, mac1 16, mac2 16.
type Response [ResponseSize]byte

// AsResponse returns b as a Response that aliases it, or the reason to drop it: Classify's, or RXBadType.
func AsResponse(b []byte) (*Response, drop.Reason) {
	if reason := expect(b, TypeResponse); reason != drop.None {
		return nil, reason
	}
	return (*Response)(b), drop.None
}

// SetHeader writes the type and both indices.
func (m *Response) SetHeader(sender, receiver uint32) {
	binary.LittleEndian.PutUint32(m[:], uint32(TypeResponse))
	binary.LittleEndian.PutUint32(m[4:], sender)
	binary.LittleEndian.PutUint32(m[8:], receiver)
}

// Sender is the responder's receiver index.
func (m *Response) Sender() uint32 { return binary.LittleEndian.Uint32(m[4:]) }

// Receiver is the initiator's index.
func (m *Response) Receiver() uint32 { return binary.LittleEndian.Uint32(m[8:]) }

// Ephemeral is the responder's ephemeral public key.
func (m *Response) Ephemeral() *[KeyLen]byte { return (*[KeyLen]byte)(m[12:]) }

// Empty is the empty plaintext, encrypted: a tag.
func (m *Response) Empty() []byte { return m[44 : 44+TagLen] }

// MACs are mac1 and mac2 at the end of an initiation or a response (paper §5.4.4), each with the bytes it covers.
type MACs struct {
	Covered1 []byte // the message before mac1
	MAC1     *[MACLen]byte
	Covered2 []byte // the message before mac2
	MAC2     *[MACLen]byte
}

// SplitMACs returns the MACs of an initiation or response, aliasing it, or the reason to drop b: Classify's, or RXBadType.
func SplitMACs(b []byte) (MACs, drop.Reason) {
	t, reason := Classify(b)
	if reason != drop.None {
		return MACs{}, reason
	}
	if t != TypeInitiation && t != TypeResponse {
		return MACs{}, drop.RXBadType
	}
	end1, end2 := len(b)-MACLen, len(b)
	start1 := end1 - MACLen
	return MACs{
		Covered1: b[:start1], MAC1: (*[MACLen]byte)(b[start1:end1]),
		Covered2: b[:end1], MAC2: (*[MACLen]byte)(b[end1:end2]),
	}, drop.None
}

// SenderIndex returns the sender index of an initiation or response that has passed Classify.
func SenderIndex(b []byte) uint32 { return binary.LittleEndian.Uint32(b[4:]) }

func expect(b []byte, want Type) drop.Reason {
	t, reason := Classify(b)
	if reason == drop.None && t != want {
		return drop.RXBadType
	}
	return reason
}
