// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"crypto/cipher"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// The strings that every hash of a handshake begins with (paper §5.4).
const (
	construction = "Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s"
	identifier   = "WireGuard v1 zx2c4 Jason@zx2c4.com"
)

// symmetric is Noise's SymmetricState: the chaining key C and the transcript hash H. A copy of it is a checkpoint.
type symmetric struct {
	chain [blake2s.Size]byte
	hash  [blake2s.Size]byte
}

// newSymmetric is the state before the first message: the responder's static key is known to both sides.
func newSymmetric(responder *PublicKey) symmetric {
	s := symmetric{chain: blake2s.Sum256([]byte(construction))}
	s.hash = s.chain
	s.mixHash([]byte(identifier))
	s.mixHash(responder[:])
	return s
}

// mixHash adds data to the transcript.
func (s *symmetric) mixHash(data []byte) {
	var buf [blake2s.Size + wire.KeyLen + wire.TagLen]byte // room for the longest, the encrypted static key
	s.hash = blake2s.Sum256(append(append(buf[:0], s.hash[:]...), data...))
}

// mixKey adds data to the chaining key.
func (s *symmetric) mixKey(data []byte) { KDF(&s.chain, data, &s.chain) }

// mixKeyForCipher adds data to the chaining key and returns the key for the next seal or open.
func (s *symmetric) mixKeyForCipher(data []byte) (key [blake2s.Size]byte) {
	KDF(&s.chain, data, &s.chain, &key)
	return key
}

// mixPSK adds the preshared key to both and returns the key for the next seal or open.
func (s *symmetric) mixPSK(psk *PresharedKey) (key [blake2s.Size]byte) {
	var temp [blake2s.Size]byte
	KDF(&s.chain, psk[:], &s.chain, &temp, &key)
	s.mixHash(temp[:])
	clear(temp[:])
	return key
}

// mixEphemeral adds an ephemeral public key to both, as the psk modifier demands (Noise §9.2).
func (s *symmetric) mixEphemeral(pub *[KeySize]byte) {
	s.mixHash(pub[:])
	s.mixKey(pub[:])
}

// seal encrypts plaintext into dst, which is longer by a tag, and adds the result to the transcript.
func (s *symmetric) seal(dst []byte, key *[blake2s.Size]byte, plaintext []byte) {
	var nonce [chacha20poly1305.NonceSize]byte
	newAEAD(key).Seal(dst[:0], nonce[:], plaintext, s.hash[:])
	s.mixHash(dst)
}

// open decrypts ciphertext into dst, which is shorter by a tag, and adds the ciphertext to the transcript. When the tag
// is wrong it returns false, leaves s as it was and dst undefined.
func (s *symmetric) open(dst []byte, key *[blake2s.Size]byte, ciphertext []byte) bool {
	var nonce [chacha20poly1305.NonceSize]byte
	if _, err := newAEAD(key).Open(dst[:0], nonce[:], ciphertext, s.hash[:]); err != nil {
		return false
	}
	s.mixHash(ciphertext)
	return true
}

// split ends the handshake. It stores the keys of the initiator's and the responder's messages. In
// k it stores a third output of the same KDF and the transcript hash (Keys.Exporter, Keys.Hash).
func (s *symmetric) split(k *Keys, initiator, responder *SessionKey) {
	KDF(&s.chain, nil, (*[KeySize]byte)(initiator), (*[KeySize]byte)(responder), (*[KeySize]byte)(&k.Exporter))
	k.Hash = s.hash
}

func newAEAD(key *[chacha20poly1305.KeySize]byte) cipher.AEAD {
	aead, err := chacha20poly1305.New(key[:])
	if err != nil {
		panic(err) // a key of the wrong size, which the type excludes
	}
	return aead
}
