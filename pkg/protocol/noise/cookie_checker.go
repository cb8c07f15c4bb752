// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// CookieChecker checks the MACs of handshake messages to one public key, and issues cookies (paper §5.4.7). A cookie is bound to the
// sender's address and port, and to a secret that is renewed every 120 s. It is safe for concurrent use.
type CookieChecker struct {
	hidden
	keys macKeys

	mu      sync.Mutex
	secret  [KeySize]byte
	created int64
	valid   bool // secret has been made
}

// NewCookieChecker returns a CookieChecker for our public key. Make a new one when that changes.
func NewCookieChecker(local PublicKey) *CookieChecker {
	return &CookieChecker{keys: newMACKeys(local)}
}

// Check reports whether mac1, and whether mac1 and mac2 of an initiation or response from src are valid at the instant
// now. Both are false for any other b.
func (c *CookieChecker) Check(b []byte, src netip.AddrPort, now int64) (mac1OK, mac2OK bool) {
	macs, reason := wire.SplitMACs(b)
	if reason != drop.None {
		return false, false
	}
	want := mac(c.keys.mac1[:], macs.Covered1)
	if !equal(want[:], macs.MAC1[:]) {
		return false, false
	}
	secret, ok := c.currentSecret(now)
	if !ok || *macs.MAC2 == [wire.MACLen]byte{} { // no cookie was issued, or the sender has none: the usual case
		return true, false
	}
	cookie := makeCookie(&secret, src)
	want = mac(cookie[:], macs.Covered2)
	return true, equal(want[:], macs.MAC2[:])
}

// CreateReply writes the answer to b, an initiation or response from src whose mac1 is right. The
// answer is a cookie for src, encrypted so that only a sender who sees b can read it. rand gives
// the nonce and, when it is time, a new secret.
func (c *CookieChecker) CreateReply(
	reply *wire.CookieReply, b []byte, src netip.AddrPort, now int64, rand io.Reader,
) error {
	macs, reason := wire.SplitMACs(b)
	if reason != drop.None {
		return fmt.Errorf("creating a cookie reply: %w: %v", ErrNoHandshakeMessage, reason)
	}
	secret, err := c.freshSecret(now, rand)
	if err != nil {
		return fmt.Errorf("creating a cookie secret: %w", err)
	}
	*reply = wire.CookieReply{}
	reply.SetHeader(wire.SenderIndex(b))
	if _, err := io.ReadFull(rand, reply.Nonce()[:]); err != nil {
		return fmt.Errorf("creating a cookie nonce: %w", err)
	}
	aead, err := chacha20poly1305.NewX(c.keys.cookie[:])
	if err != nil {
		return fmt.Errorf("creating a cookie cipher: %w", err)
	}
	cookie := makeCookie(&secret, src)
	aead.Seal(reply.Cookie()[:0], reply.Nonce()[:], cookie[:], macs.MAC1[:])
	return nil
}

// currentSecret returns the secret, and whether it is valid and not too old.
func (c *CookieChecker) currentSecret(now int64) (secret [KeySize]byte, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.secret, c.isFresh(now)
}

// freshSecret returns the secret, and renews it first if it is too old.
func (c *CookieChecker) freshSecret(now int64, rand io.Reader) ([KeySize]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isFresh(now) {
		return c.secret, nil
	}
	c.valid = false
	if _, err := io.ReadFull(rand, c.secret[:]); err != nil {
		return [KeySize]byte{}, err
	}
	c.created, c.valid = now, true
	return c.secret, nil
}

func (c *CookieChecker) isFresh(now int64) bool { return c.valid && now-c.created < CookieLifetime }

// makeCookie is the paper's MAC(secret, source address), where the address includes the port, as in the kernel.
func makeCookie(secret *[KeySize]byte, src netip.AddrPort) [wire.CookieLen]byte {
	return mac(secret[:], src.Addr().Unmap().AsSlice(), binary.BigEndian.AppendUint16(nil, src.Port()))
}
