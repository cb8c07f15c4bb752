// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
)

// KEMPart is the plaintext of the data message that carries a part of a message of a post-quantum
// exchange. The message is an encapsulation key of ML-KEM-768 (FIPS 203), or a ciphertext with a
// tag. Like a hello, no stock peer takes it for an IP packet. It is sent only to peers whose hello
// has PostQuantum set. All parts of both messages pass a path of 576 bytes.
type KEMPart struct {
	Kind KEMKind
	Part int    // from 0, less than KEMParts
	Data []byte // the bytes of the message from Part*KEMPartSize on
}

// KEMKind is the kind of a message of a post-quantum exchange.
type KEMKind uint8

// The kinds of messages.
const (
	KEMKey        KEMKind = 1 // from the initiator of the session: an encapsulation key
	KEMCiphertext KEMKind = 2 // from its responder: a ciphertext, and a tag of KEMTagSize
)

// Sizes of a post-quantum exchange, in bytes, and the number of parts of each of its messages.
const (
	KEMParts          = 3
	KEMPartSize       = 400 // of the data of all parts but the last
	KEMKeySize        = 1184
	KEMTagSize        = 16
	KEMCiphertextSize = 1088 + KEMTagSize
)

// Errors of ParseKEMPart.
var (
	ErrKEMMalformed = errors.New("malformed part of a post-quantum exchange")          // truncated, or an invalid field
	ErrKEMVersion   = errors.New("part of a post-quantum exchange of another version") // or of an unknown kind or suite; the receiver ignores it
)

// Offsets in a part after its header, whose flags are 0: kind 1, suite 1, part 1, number of parts 1, length of the data 2.
const (
	kemKindAt   = 6
	kemSuiteAt  = 7
	kemPartAt   = 8
	kemPartsAt  = 9
	kemLengthAt = 10
	kemDataAt   = 12
)

// kemSuite is ML-KEM-768 with BLAKE2s.
const kemSuite = 1

var kemHeader = header{kemMagic, 1, kemDataAt, ErrKEMMalformed, ErrKEMVersion}

// Size returns the size of a whole message of this kind in bytes, 0 for an unknown kind.
func (k KEMKind) Size() int {
	switch k {
	case KEMKey:
		return KEMKeySize
	case KEMCiphertext:
		return KEMCiphertextSize
	}
	return 0
}

// span returns where the data of a part begin and end in a message of this kind.
func (k KEMKind) span(part int) (from, to int) {
	return part * KEMPartSize, min((part+1)*KEMPartSize, k.Size())
}

// AppendKEMPart appends a part of message, which has the size of its kind, without padding, and returns the extended slice.
func AppendKEMPart(b []byte, kind KEMKind, message []byte, part int) []byte {
	from, to := kind.span(part)
	b = append(kemHeader.append(b, 0), byte(kind), kemSuite, byte(part), KEMParts)
	b = binary.LittleEndian.AppendUint16(b, uint16(to-from))
	return append(b, message[from:to]...)
}

// ParseKEMPart parses a decrypted data message into p, whose Data is a part of plain. The error is ErrKEMMalformed or ErrKEMVersion; then p must
// not be used. Padding and flags are ignored.
func ParseKEMPart(plain []byte, p *KEMPart) error {
	if err := kemHeader.check(plain); err != nil {
		return err
	}
	kind, part := KEMKind(plain[kemKindAt]), int(plain[kemPartAt])
	if kind.Size() == 0 || plain[kemSuiteAt] != kemSuite {
		return ErrKEMVersion
	}
	if part >= KEMParts || plain[kemPartsAt] != KEMParts {
		return ErrKEMMalformed
	}
	from, to := kind.span(part)
	length := int(binary.LittleEndian.Uint16(plain[kemLengthAt:]))
	if length != to-from || kemDataAt+length > len(plain) {
		return ErrKEMMalformed
	}
	*p = KEMPart{Kind: kind, Part: part, Data: plain[kemDataAt : kemDataAt+length]}
	return nil
}
