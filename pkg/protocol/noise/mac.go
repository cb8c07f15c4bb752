// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"golang.org/x/crypto/blake2s"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// CookieLifetime is how long a responder keeps the secret of its cookies, and an initiator uses a cookie, in
// nanoseconds: 120 s (paper §5.4.7, §6.6).
const CookieLifetime int64 = 120e9

// The labels that separate the keys of mac1 and of cookie replies (paper §5.4.4, §5.4.7).
const (
	labelMAC1   = "mac1----"
	labelCookie = "cookie--"
)

// macKeys are derived from the public key of the side that checks mac1 and issues cookies. They are not secret from
// anyone who knows that public key.
type macKeys struct {
	mac1   [blake2s.Size]byte
	cookie [blake2s.Size]byte
}

func newMACKeys(public PublicKey) macKeys {
	return macKeys{
		mac1:   blake2s.Sum256(append([]byte(labelMAC1), public[:]...)),
		cookie: blake2s.Sum256(append([]byte(labelCookie), public[:]...)),
	}
}

// mac is keyed BLAKE2s with 16 bytes of output, over all parts. key has at most 32 bytes.
func mac(key []byte, parts ...[]byte) (sum [wire.MACLen]byte) {
	h, err := blake2s.New128(key)
	if err != nil {
		panic(err) // a key that is too long or empty, which no caller has
	}
	for _, part := range parts {
		_, _ = h.Write(part)
	}
	h.Sum(sum[:0])
	return sum
}
