// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// CookieReply is the reply of a responder under load to a handshake message without a valid mac2 (paper §5.4.7): type
// 4, receiver 4, nonce 24, cookie 16+16.
type CookieReply [CookieReplySize]byte

// AsCookieReply returns b as a CookieReply that aliases it, or the reason to drop it: Classify's, or RXBadType.
func AsCookieReply(b []byte) (*CookieReply, drop.Reason) {
	if reason := expect(b, TypeCookieReply); reason != drop.None {
		return nil, reason
	}
	return (*CookieReply)(b), drop.None
}

// SetHeader writes the type and the receiver index.
func (m *CookieReply) SetHeader(receiver uint32) {
	binary.LittleEndian.PutUint32(m[:], uint32(TypeCookieReply))
	binary.LittleEndian.PutUint32(m[4:], receiver)
}

// Receiver is the sender index of the handshake message.
func (m *CookieReply) Receiver() uint32 { return binary.LittleEndian.Uint32(m[4:]) }

// Nonce is the XChaCha20-Poly1305 nonce.
func (m *CookieReply) Nonce() *[NonceLen]byte { return (*[NonceLen]byte)(m[8:]) }

// Cookie is the cookie, encrypted.
func (m *CookieReply) Cookie() []byte { return m[32 : 32+CookieLen+TagLen] }
