// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"crypto/mlkem"
	"crypto/subtle"
	"fmt"
	"io"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// keyPair is the ephemeral key pair of an offerer. crypto/mlkem holds the private key, so only the reference to it can be dropped, as for the ephemeral
// key of a handshake. To keep the seed and expand it twice would cost a tenth of a rekey, and leave as much behind.
type keyPair struct{ private *mlkem.DecapsulationKey768 }

// newKeyPair makes a key pair of rand's bytes, and returns its encapsulation key.
func newKeyPair(k *keyPair, rand io.Reader) (ek []byte, err error) {
	var seed [mlkem.SeedSize]byte
	defer clear(seed[:])
	if _, err := io.ReadFull(rand, seed[:]); err != nil {
		return nil, fmt.Errorf("reading randomness for a key pair of ML-KEM: %w", err)
	}
	if k.private, err = mlkem.NewDecapsulationKey768(seed[:]); err != nil {
		return nil, fmt.Errorf("creating a key pair of ML-KEM: %w", err)
	}
	return k.private.EncapsulationKey().Bytes(), nil
}

// decapsulate stores the secret of a ciphertext in shared. A ciphertext that was made with another key gives another secret and no error (FIPS 203,
// section 6.3).
func (k *keyPair) decapsulate(shared *[mlkem.SharedKeySize]byte, ct []byte) bool {
	secret, err := k.private.Decapsulate(ct)
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
func (s *Session) finish(offerer, answerer *noise.PublicKey, key *keyPair, ek, message []byte) (r result, ok bool) {
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
