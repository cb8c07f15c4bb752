// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
)

// Check is the plaintext of a data message that tests whether the path admits the port from which it is sent, or of the answer to one.
// Like a hello, no stock peer takes it for an IP packet. It is sent only to peers whose hello has Checks set.
type Check struct {
	Answer bool
	Source int    // the index of the source port among those that the sender uses, at most MaxHelloPorts-1; ListenPortSource for its listen port
	Round  uint32 // of the prober; an answer repeats it
	// Ages has, in an answer, the number of rounds since the last check from each source port; 255 if none has arrived. It is a part of
	// the parsed message.
	Ages []byte
}

// ListenPortSource is the Source of a check from the listen port, and of answers.
const ListenPortSource = 0xff

// Errors of ParseCheck.
var (
	ErrCheckMalformed = errors.New("malformed check of a source port")          // not a check, truncated, or an invalid field
	ErrCheckVersion   = errors.New("check of a source port of another version") // a later version; the receiver ignores it
)

// Offsets in a check after its header: source 1, number of ages 1, round 4, ages 1 each. WireGuard's padding follows.
const (
	checkSourceAt = 6
	checkCountAt  = 7
	checkRoundAt  = 8
	checkAgesAt   = 12
)

var checkHeader = header{checkMagic, 1, checkAgesAt, ErrCheckMalformed, ErrCheckVersion}

// MaxCheckSize is the size of the largest check in bytes, before it is padded.
const MaxCheckSize = checkAgesAt + MaxHelloPorts

// AppendCheck appends c, without padding, and returns the extended slice. It truncates the ages to MaxHelloPorts.
func AppendCheck(b []byte, c *Check) []byte {
	ages, flags := c.Ages[:min(len(c.Ages), MaxHelloPorts)], byte(0)
	if c.Answer {
		flags = flagAnswer
	}
	b = append(checkHeader.append(b, flags), byte(c.Source), byte(len(ages)))
	b = binary.LittleEndian.AppendUint32(b, c.Round)
	return append(b, ages...)
}

// ParseCheck parses a decrypted data message into c. The error is ErrCheckMalformed or ErrCheckVersion; then c must not be used.
func ParseCheck(plain []byte, c *Check) error {
	if err := checkHeader.check(plain); err != nil {
		return err
	}
	end := checkAgesAt + int(plain[checkCountAt])
	if end > len(plain) || end > MaxCheckSize {
		return ErrCheckMalformed
	}
	*c = Check{
		Answer: plain[flagsAt]&flagAnswer != 0, Source: int(plain[checkSourceAt]),
		Round: binary.LittleEndian.Uint32(plain[checkRoundAt:]), Ages: plain[checkAgesAt:end],
	}
	if c.Source != ListenPortSource && (c.Source >= MaxHelloPorts || c.Answer) {
		return ErrCheckMalformed
	}
	return nil
}
