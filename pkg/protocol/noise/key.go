// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/curve25519"
)

// KeySize is the size of every key, in bytes.
const KeySize = 32

// ErrKeyFormat is wrapped by every error of ParseBase64 and ParseHex. These errors never quote their input.
var ErrKeyFormat = errors.New("malformed key")

// PrivateKey is a Curve25519 private key. It redacts itself; Base64 and Hex reveal it.
type PrivateKey [KeySize]byte

// PublicKey is a Curve25519 public key. It is printed in base64.
type PublicKey [KeySize]byte

// PresharedKey is a symmetric key that both peers mix into the handshake; zero stands for none. It redacts itself;
// Base64 and Hex reveal it.
type PresharedKey [KeySize]byte

// Key is any of the keys that appear in configuration.
type Key interface {
	PrivateKey | PublicKey | PresharedKey
}

// NewPrivateKey returns a clamped private key made of rand's bytes.
func NewPrivateKey(rand io.Reader) (PrivateKey, error) {
	var k PrivateKey
	if _, err := io.ReadFull(rand, k[:]); err != nil {
		return PrivateKey{}, fmt.Errorf("reading randomness for a private key: %w", err)
	}
	return k.Clamp(), nil
}

// NewPresharedKey returns a preshared key made of rand's bytes.
func NewPresharedKey(rand io.Reader) (PresharedKey, error) {
	var k PresharedKey
	if _, err := io.ReadFull(rand, k[:]); err != nil {
		return PresharedKey{}, fmt.Errorf("reading randomness for a preshared key: %w", err)
	}
	return k, nil
}

// ParseBase64 parses a key as wg(8) writes it: exactly 44 characters, the last one padding, and no bits set beyond the
// key's.
func ParseBase64[K Key](s string) (K, error) {
	var raw [KeySize]byte
	defer clear(raw[:])
	if len(s) != base64Len {
		return K{}, fmt.Errorf("%w: %d characters of base64, want %d", ErrKeyFormat, len(s), base64Len)
	}
	if !decodeBase64(&raw, s) {
		return K{}, fmt.Errorf("%w: not canonical base64", ErrKeyFormat)
	}
	return K(raw), nil
}

// ParseHex parses a key as the UAPI writes it: 64 hexadecimal digits of either case.
func ParseHex[K Key](s string) (K, error) {
	var raw [KeySize]byte
	defer clear(raw[:])
	if len(s) != hexLen {
		return K{}, fmt.Errorf("%w: %d characters of hex, want %d", ErrKeyFormat, len(s), hexLen)
	}
	if !decodeHex(&raw, s) {
		return K{}, fmt.Errorf("%w: not hex", ErrKeyFormat)
	}
	return K(raw), nil
}

// Clamp returns the key clamped as for Curve25519 (RFC 7748, §5). The result has the same public key, and stock
// implementations show it in this form. The zero key, which means none, stays zero.
func (k PrivateKey) Clamp() PrivateKey {
	if k.IsZero() {
		return k
	}
	k[0] &= 248
	k[31] = k[31]&127 | 64
	return k
}

// Public returns the public key that belongs to k.
func (k PrivateKey) Public() PublicKey {
	var pub [KeySize]byte
	curve25519.ScalarBaseMult(&pub, (*[KeySize]byte)(&k))
	return pub
}

// Base64 reveals the key.
func (k PrivateKey) Base64() string { return encodeBase64((*[KeySize]byte)(&k)) }

// Hex reveals the key.
func (k PrivateKey) Hex() string { return encodeHex((*[KeySize]byte)(&k)) }

// IsZero reports, in constant time, whether the key is all zero, which stands for none.
func (k PrivateKey) IsZero() bool { return equal(k[:], make([]byte, KeySize)) }

// Equal compares in constant time.
func (k PrivateKey) Equal(o PrivateKey) bool { return equal(k[:], o[:]) }

// Base64 returns the key as wg(8) writes it.
func (k PublicKey) Base64() string { return encodeBase64((*[KeySize]byte)(&k)) }

// Hex returns the key as the UAPI writes it.
func (k PublicKey) Hex() string { return encodeHex((*[KeySize]byte)(&k)) }

// IsZero reports whether the key is all zero.
func (k PublicKey) IsZero() bool { return equal(k[:], make([]byte, KeySize)) }

// Equal compares in constant time.
func (k PublicKey) Equal(o PublicKey) bool { return equal(k[:], o[:]) }

// String returns the key in base64.
func (k PublicKey) String() string { return k.Base64() }

// MarshalText returns the key in base64.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.Base64()), nil }

// UnmarshalText parses base64, as ParseBase64 does. On error k stays as it is.
func (k *PublicKey) UnmarshalText(text []byte) error {
	parsed, err := ParseBase64[PublicKey](string(text))
	if err == nil {
		*k = parsed
	}
	return err
}

// Base64 reveals the key.
func (k PresharedKey) Base64() string { return encodeBase64((*[KeySize]byte)(&k)) }

// Hex reveals the key.
func (k PresharedKey) Hex() string { return encodeHex((*[KeySize]byte)(&k)) }

// IsZero reports, in constant time, whether the key is all zero, which stands for none.
func (k PresharedKey) IsZero() bool { return equal(k[:], make([]byte, KeySize)) }

// Equal compares in constant time.
func (k PresharedKey) Equal(o PresharedKey) bool { return equal(k[:], o[:]) }

func equal(a, b []byte) bool { return subtle.ConstantTimeCompare(a, b) == 1 }
