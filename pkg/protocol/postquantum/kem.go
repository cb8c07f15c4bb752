// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"crypto/mlkem"
	"crypto/subtle"
	"fmt"
	"io"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// seed is the secret of an offerer. crypto/mlkem's keys cannot be overwritten, so the offerer keeps the seed, and expands it when it needs the key.
type seed [mlkem.SeedSize]byte

// newSeed draws a seed from rand, and returns its encapsulation key.
func newSeed(s *seed, rand io.Reader) (ek []byte, err error) {
	if _, err := io.ReadFull(rand, s[:]); err != nil {
		return nil, fmt.Errorf("reading randomness for a key pair of ML-KEM: %w", err)
	}
	dk, err := mlkem.NewDecapsulationKey768(s[:])
	if err != nil {
		return nil, fmt.Errorf("creating a key pair of ML-KEM: %w", err)
	}
	return dk.EncapsulationKey().Bytes(), nil
}

// decapsulate stores the secret of a ciphertext in shared. A ciphertext that was made with another key gives another secret and no error (FIPS 203,
// section 6.3).
func (s *seed) decapsulate(shared *[mlkem.SharedKeySize]byte, ct []byte) bool {
	dk, err := mlkem.NewDecapsulationKey768(s[:])
	if err != nil {
		return false
	}
	secret, err := dk.Decapsulate(ct)
	return err == nil && take(shared, secret)
}

// encapsulate stores a new secret in shared, and returns its ciphertext. It returns false for an invalid key (FIPS 203, section 7.2).
func encapsulate(shared *[mlkem.SharedKeySize]byte, ek []byte) (ct []byte, ok bool) {
	key, err := mlkem.NewEncapsulationKey768(ek)
	if err != nil {
		return nil, false
	}
	secret, ct := key.Encapsulate()
	return ct, take(shared, secret)
}

// take moves a secret. It returns false if it is zero, which no honest exchange yields.
func take(shared *[mlkem.SharedKeySize]byte, secret []byte) bool {
	copy(shared[:], secret)
	clear(secret)
	return subtle.ConstantTimeCompare(shared[:], make([]byte, mlkem.SharedKeySize)) == 0
}

// answer makes the ciphertext and tag for an encapsulation key that has arrived in a session, and the result.
func (s *Session) answer(offerer, answerer *noise.PublicKey, ek []byte) (message []byte, r result, ok bool) {
	noise.Secretly(func() {
		var shared [mlkem.SharedKeySize]byte
		defer clear(shared[:])
		if message, ok = encapsulate(&shared, ek); !ok {
			return
		}
		t := transcript(offerer, answerer, &s.hash, ek, message)
		r = derive(&s.exporter, shared[:], &t)
		message = append(message, r.tag[:]...)
	})
	return message, r, ok
}

// finish checks ciphertext and tag, and returns the result. It returns false if the tag is wrong.
func (s *Session) finish(offerer, answerer *noise.PublicKey, key *seed, ek, message []byte) (r result, ok bool) {
	noise.Secretly(func() {
		var shared [mlkem.SharedKeySize]byte
		defer clear(shared[:])
		ct, tag := message[:mlkem.CiphertextSize768], message[mlkem.CiphertextSize768:]
		if !key.decapsulate(&shared, ct) {
			return
		}
		t := transcript(offerer, answerer, &s.hash, ek, ct)
		r = derive(&s.exporter, shared[:], &t)
		ok = subtle.ConstantTimeCompare(r.tag[:], tag) == 1
	})
	return r, ok
}
