// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// Type is a message's type: its first four bytes. The last three are reserved and zero.
type Type uint32

// The message types.
const (
	TypeInitiation  Type = 1 // first handshake message, initiator to responder
	TypeResponse    Type = 2 // second handshake message, responder to initiator
	TypeCookieReply Type = 3 // reply of a responder under load
	TypeData        Type = 4 // transport data, keepalives included
)

// Sizes of whole messages, in bytes.
const (
	InitiationSize  = 148
	ResponseSize    = 92
	CookieReplySize = 64
	KeepaliveSize   = DataOverhead  // a data message with an empty plaintext
	MinSize         = KeepaliveSize // the smallest message
)

// Lengths of message fields, in bytes.
const (
	DataHeaderLen   = 16
	TagLen          = 16                     // Poly1305 tag
	DataOverhead    = DataHeaderLen + TagLen // added by a data message to its padded plaintext
	PaddingMultiple = 16                     // plaintexts are padded to a multiple of this
	KeyLen          = 32                     // Curve25519 public key
	TimestampLen    = 12                     // TAI64N
	MACLen          = 16                     // mac1 and mac2, each
	NonceLen        = 24                     // XChaCha20-Poly1305
	CookieLen       = 16
)

// Classify returns the type of a datagram, or the reason to drop it: RXTooShort, RXBadType or RXBadLength. The
// accessors of this package are safe for messages that it accepts.
func Classify(b []byte) (Type, drop.Reason) {
	if len(b) >= MinSize && Type(binary.LittleEndian.Uint32(b)) == TypeData {
		return TypeData, drop.None
	}
	return classifyControl(b)
}

// classifyControl is separate so that Classify is small enough to be inlined on the receive path.
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
