// SPDX-License-Identifier: Apache-2.0

package noise

// signature is "rwp", which a ropewalk initiator stores in the 24 bits that stock implementations clear. It is less
// than 10,144,256, the nanoseconds in the last Granule of a second, so a signed timestamp is still a valid TAI64N
// label.
const signature = 0x727770

// Signed returns t with ropewalk's signature in its low bits, by which an initiator announces that it supports
// hellos. A stock responder only requires that timestamps increase; those of one Clock keep their order.
func (t Timestamp) Signed() Timestamp { return t.WithLowBits(signature) }

// IsSigned reports whether an initiator has signed t. Stock initiators never do. An implementation with an unrounded
// clock matches by chance once in 2^24 handshakes; it then receives a hello, which it drops.
func (t Timestamp) IsSigned() bool { return t.LowBits() == signature }
