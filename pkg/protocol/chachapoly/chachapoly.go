// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/crypto/chacha20poly1305"
)

const (
	// KeyLen is the length of a key in bytes.
	KeyLen = chacha20poly1305.KeySize

	// TagLen is the length in bytes of the tag behind each text.
	TagLen = chacha20poly1305.Overhead
)

// Message is one message to be sealed or opened in place.
type Message struct {
	Counter uint64 // the nonce's 64 bits
	Text    []byte // sealing: plaintext and TagLen bytes that receive the tag; opening: ciphertext and its tag
	Valid   bool   // set by Open: the tag is right and Text[:len-TagLen] is plaintext
}

// Key is the key of one direction. Any number of goroutines may use it at once, each with its own Scratch. Its bytes
// are overwritten some time after it has become unreachable. They must not be overwritten earlier: a lane that is
// still sealing would encrypt with a known key.
type Key struct {
	choice *choice
	secret *secret
}

// secret is overwritten by a Key's cleanup, so it must not refer to the Key.
type secret struct {
	state [16]uint32 // RFC 8439 2.3; words 12, 14 and 15 differ per lane; 13 is zero in WireGuard
	aead  cipher.AEAD
	wiped atomic.Bool
}

// NewKey returns a Key that uses the implementations of Choices. The caller wipes its own copy. The only error is that the build rejects
// the cipher (FIPS 140-only mode).
func NewKey(key *[KeyLen]byte) (*Key, error) {
	return newKey(preferred(), key, 0)
}

func newKey(c *choice, key *[KeyLen]byte, prefix uint32) (*Key, error) {
	aead, err := chacha20poly1305.New(key[:])
	if err != nil {
		return nil, fmt.Errorf("creating a cipher: %w", err)
	}
	s := &secret{aead: aead}
	for i, word := range []string{"expa", "nd 3", "2-by", "te k"} {
		s.state[i] = binary.LittleEndian.Uint32([]byte(word))
	}
	for i := range 8 {
		s.state[4+i] = binary.LittleEndian.Uint32(key[4*i:])
	}
	s.state[13] = prefix
	k := &Key{choice: c, secret: s}
	runtime.AddCleanup(k, (*secret).wipe, s)
	return k, nil
}

// Seal encrypts each message's Text in place and writes its tag behind it. A Text shorter than TagLen stays unchanged.
func (k *Key) Seal(s *Scratch, msgs []Message) {
	if len(msgs) > 0 {
		k.choice.of(sealing, msgs).seal(k.secret, s, msgs)
	}
	runtime.KeepAlive(k)
}

// Open authenticates each message, sets Valid accordingly, and decrypts the valid ones in place. The text of an invalid
// one is unchanged or zeroed. A Text shorter than TagLen is invalid.
func (k *Key) Open(s *Scratch, msgs []Message) {
	if len(msgs) > 0 {
		k.choice.of(opening, msgs).open(k.secret, s, msgs)
	}
	runtime.KeepAlive(k)
}

// Format prints the same whatever the verb: no key can be printed by accident.
func (k *Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// String says that there is a key.
func (k *Key) String() string {
	if k == nil {
		return "no key"
	}
	return "chachapoly key"
}
