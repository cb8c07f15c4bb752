// SPDX-License-Identifier: Apache-2.0

package noise

// signature is what a ropewalk initiator puts into the 24 bits that stock implementations clear: "rwp". It is below
// 10,144,256, the nanoseconds that the last Granule of a second has, so that a signed timestamp is still a TAI64N label.
const signature = 0x727770

// Signed returns t with ropewalk's signature in its low bits: how an initiator tells a responder that it understands
// hellos. To a stock responder, which only asks for "later than the last", it is a timestamp like any other: those of
// one Clock keep their order.
func (t Timestamp) Signed() Timestamp { return t.WithLowBits(signature) }

// IsSigned reports whether an initiator has signed t. A stock one never has. An implementation that sends its clock
// unrounded has by chance, once in 2^24 handshakes, and gets a message that it discards.
func (t Timestamp) IsSigned() bool { return t.LowBits() == signature }
