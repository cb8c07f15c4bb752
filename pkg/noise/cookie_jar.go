// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/pkg/wire"
)

// ErrNoHandshakeMessage says that MACs were asked for a message that has none.
var ErrNoHandshakeMessage = errors.New("neither an initiation nor a response")

// CookieJar adds the MACs to the handshake messages for one peer and keeps the cookie the peer hands out. It is safe
// for concurrent use.
type CookieJar struct {
	hidden
	keys macKeys

	mu       sync.Mutex
	lastMAC1 [wire.MACLen]byte
	awaiting bool // lastMAC1 was sent, and not yet answered
	cookie   [wire.CookieLen]byte
	received int64
	valid    bool // cookie was received
}

// NewCookieJar returns a CookieJar without a cookie.
func NewCookieJar(remote *Remote) *CookieJar { return &CookieJar{keys: remote.macs} }

// AddMACs writes mac1, and mac2 if there is a cookie that is younger than 120 s, into a complete initiation or response
// that is about to be sent (paper §5.4.4). Any other b is ErrNoHandshakeMessage.
func (j *CookieJar) AddMACs(b []byte, now int64) error {
	macs, reason := wire.SplitMACs(b)
	if reason != drop.None {
		return fmt.Errorf("adding MACs: %w: %v", ErrNoHandshakeMessage, reason)
	}
	*macs.MAC1 = mac(j.keys.mac1[:], macs.Covered1)
	*macs.MAC2 = [wire.MACLen]byte{}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastMAC1, j.awaiting = *macs.MAC1, true
	if j.valid && now-j.received >= CookieLifetime {
		j.forget()
	}
	if j.valid {
		*macs.MAC2 = mac(j.cookie[:], macs.Covered2)
	}
	return nil
}

// ConsumeReply takes a cookie from a cookie reply. It is HSBadCookie, and the jar stays as it is, when the reply does
// not answer the last message that AddMACs saw, or that was answered before; Classify's reasons come first.
func (j *CookieJar) ConsumeReply(b []byte, now int64) drop.Reason {
	reply, reason := wire.AsCookieReply(b)
	if reason != drop.None {
		return reason
	}
	aead, err := chacha20poly1305.NewX(j.keys.cookie[:])
	if err != nil {
		return drop.HSBadCookie
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.awaiting {
		return drop.HSBadCookie
	}
	var cookie [wire.CookieLen]byte
	if _, err := aead.Open(cookie[:0], reply.Nonce()[:], reply.Cookie(), j.lastMAC1[:]); err != nil {
		return drop.HSBadCookie
	}
	j.cookie, j.received, j.valid, j.awaiting = cookie, now, true, false
	return drop.None
}

// Wipe forgets the cookie and the message that a reply could answer.
func (j *CookieJar) Wipe() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forget()
	j.lastMAC1, j.awaiting = [wire.MACLen]byte{}, false
}

func (j *CookieJar) forget() { j.cookie, j.valid = [wire.CookieLen]byte{}, false }
