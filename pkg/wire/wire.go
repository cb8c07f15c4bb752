// SPDX-License-Identifier: Apache-2.0

// Package wire holds the layouts of WireGuard's four messages: sizes, offsets and accessors over received bytes
// (WireGuard paper, §5.4). It validates nothing but type and length. All integers are little-endian.
package wire

import (
	"encoding/binary"

	"github.com/ropewalk/ropewalk/pkg/drop"
)

// Type is a message's type: its first four bytes, of which the last three are reserved and zero.
type Type uint32

// The message types.
const (
	TypeInitiation  Type = 1 // first handshake message, initiator to responder
	TypeResponse    Type = 2 // second handshake message, responder to initiator
	TypeCookieReply Type = 3 // answer of a responder under load
	TypeData        Type = 4 // transport data, keepalives included
)

// String returns the type's name, as used in logs and metric labels.
func (t Type) String() string {
	switch t {
	case TypeInitiation:
		return "initiation"
	case TypeResponse:
		return "response"
	case TypeCookieReply:
		return "cookie_reply"
	case TypeData:
		return "data"
	default:
		return "unknown"
	}
}

// Sizes of whole messages, in bytes.
const (
	InitiationSize  = 148
	ResponseSize    = 92
	CookieReplySize = 64
	KeepaliveSize   = DataOverhead  // a data message of empty plaintext
	MinSize         = KeepaliveSize // the smallest message there is
)

// Lengths of the parts of messages, in bytes.
const (
	DataHeaderLen   = 16
	TagLen          = 16                     // Poly1305 tag
	DataOverhead    = DataHeaderLen + TagLen // what a data message adds to its padded plaintext
	PaddingMultiple = 16                     // plaintexts are padded to a multiple of this
	KeyLen          = 32                     // Curve25519 public key
	TimestampLen    = 12                     // TAI64N
	MACLen          = 16                     // mac1 and mac2, each
	NonceLen        = 24                     // XChaCha20-Poly1305
	CookieLen       = 16
)

// Classify returns the type of a datagram, or the reason to discard it: RXTooShort, RXBadType or RXBadLength. The
// accessors of this package are safe on what it accepts.
func Classify(b []byte) (Type, drop.Reason) {
	if len(b) >= MinSize && Type(binary.LittleEndian.Uint32(b)) == TypeData {
		return TypeData, drop.None
	}
	return classifyControl(b)
}

// classifyControl is apart so that Classify is small enough to be inlined where data messages are received.
func classifyControl(b []byte) (Type, drop.Reason) {
	if len(b) < MinSize {
		return 0, drop.RXTooShort
	}
	t := Type(binary.LittleEndian.Uint32(b))
	want := 0
	switch t {
	case TypeInitiation:
		want = InitiationSize
	case TypeResponse:
		want = ResponseSize
	case TypeCookieReply:
		want = CookieReplySize
	default:
		return 0, drop.RXBadType
	}
	if len(b) != want {
		return 0, drop.RXBadLength
	}
	return t, drop.None
}

// ReceiverIndex returns the index that the receiver of b chose for its session or handshake. An initiation has none;
// for it the result is the sender index. b must have passed Classify.
func ReceiverIndex(b []byte) uint32 {
	if b[0] == byte(TypeResponse) {
		return binary.LittleEndian.Uint32(b[8:])
	}
	return binary.LittleEndian.Uint32(b[4:])
}
