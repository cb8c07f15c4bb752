// SPDX-License-Identifier: Apache-2.0

package noise

// signature is "rwp", which a ropewalk initiator stores in the 24 bits that stock implementations
// clear. It is less than 10,144,256, the nanoseconds in the last Granule of a second, so a signed
// timestamp is still a valid TAI64N label. The values from naming to naming + 65,535, which name a
// key, are also below it.
const (
	signature = 0x727770
	naming    = 0x710000
)

// Signed returns t with ropewalk's signature in its low bits, by which an initiator announces that
// it supports hellos. A stock responder only requires that timestamps increase. Signed timestamps
// of one Clock keep their order.
func (t Timestamp) Signed() Timestamp { return t.WithLowBits(signature) }

// IsSigned reports whether an initiator has signed t. Stock initiators never do. An implementation with an unrounded
// clock matches by chance once in 2^24 handshakes; it then receives a hello, which it drops.
func (t Timestamp) IsSigned() bool { return t.LowBits() == signature }

// Naming returns t with the id of a key of a post-quantum exchange in its low bits. By it an
// initiator proposes the key to a responder that has it.
func (t Timestamp) Naming(id uint16) Timestamp { return t.WithLowBits(naming | uint32(id)) }

// Named returns the id that t names. An unrounded clock names one by chance once in 256 handshakes.
func (t Timestamp) Named() (id uint16, ok bool) {
	v := t.LowBits()
	return uint16(v), v&^0xffff == naming
}
