// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/ropewalk/ropewalk/pkg/protocol/wire"

// maxMessage is the largest message in bytes: a UDP datagram.
const maxMessage = 65535

// Layout describes the messages of a train to be sealed: consecutive, all of the same size but the last, which may be
// shorter. Message i starts at i*Stride(): wire.DataHeaderLen bytes for the header, the plaintext, its padding, and
// wire.TagLen bytes for the tag. One UDP GSO send takes them in this form.
type Layout struct {
	// Segments is the number of messages, at least 1.
	Segments int
	// Plain and Padded are the bytes of each plaintext but the last, before and after padding.
	Plain, Padded int
	// LastPlain and LastPadded are the bytes of the last, or only, plaintext. Neither may exceed
	// Plain and Padded.
	LastPlain, LastPadded int
}

// NewLayout lays out segments plaintexts of plain bytes, the last of lastPlain bytes. They are
// padded as wire.PaddedLen does for an inner interface of the given mtu.
func NewLayout(segments, plain, lastPlain, mtu int) Layout {
	return Layout{
		Segments:   segments,
		Plain:      plain,
		Padded:     wire.PaddedLen(plain, mtu),
		LastPlain:  lastPlain,
		LastPadded: wire.PaddedLen(lastPlain, mtu),
	}
}

// Stride is the distance from one message to the next, in bytes: the segment size of the UDP GSO send.
func (l Layout) Stride() int { return l.Padded + wire.DataOverhead }

// Size is the train's length in bytes, from its first header to its last tag.
func (l Layout) Size() int { return (l.Segments-1)*l.Stride() + l.LastPadded + wire.DataOverhead }

func (l Layout) valid() bool {
	return l.Segments >= 1 && l.Segments <= MaxReserve &&
		l.LastPlain >= 0 && l.LastPlain <= l.LastPadded && l.LastPadded <= l.Padded &&
		l.Plain >= l.LastPlain && l.Plain <= l.Padded && l.Padded <= maxMessage-wire.DataOverhead
}

// segment returns the bytes of plaintext i before and after padding.
func (l Layout) segment(i int) (plain, padded int) {
	if i == l.Segments-1 {
		return l.LastPlain, l.LastPadded
	}
	return l.Plain, l.Padded
}
