// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// ErrNoHandshakeMessage means that the message has no MACs.
var ErrNoHandshakeMessage = errors.New("neither an initiation nor a response")

// CookieJar adds the MACs to the handshake messages for one peer and stores the cookie that the peer issues. It is safe
// for concurrent use.
type CookieJar struct {
	hidden
	keys macKeys

	mu           sync.Mutex
	lastMAC1     [wire.MACLen]byte
	replyPending bool // lastMAC1 was sent, and not yet answered
	cookie       [wire.CookieLen]byte
	received     int64
	valid        bool // cookie was received
}

// NewCookieJar returns a CookieJar without a cookie.
func NewCookieJar(remote *Remote) *CookieJar { return &CookieJar{keys: remote.macs} }

// AddMACs writes mac1 into a complete initiation or response that is about to be sent (paper
// §5.4.4). It adds mac2 if there is a cookie that is younger than 120 s. Any other b is
// ErrNoHandshakeMessage.
func (j *CookieJar) AddMACs(b []byte, now int64) error {
	macs, reason := wire.SplitMACs(b)
	if reason != drop.None {
		return fmt.Errorf("adding MACs: %w: %v", ErrNoHandshakeMessage, reason)
	}
	*macs.MAC1 = mac(j.keys.mac1[:], macs.Covered1)
	*macs.MAC2 = [wire.MACLen]byte{}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lastMAC1, j.replyPending = *macs.MAC1, true
	if j.valid && now-j.received >= CookieLifetime {
		j.forget()
	}
	if j.valid {
		*macs.MAC2 = mac(j.cookie[:], macs.Covered2)
	}
	return nil
}

// ConsumeReply stores the cookie of a cookie reply. It returns HSBadCookie if the reply does not
// answer the last message that AddMACs processed, or that message already had a reply. The jar
// then stays unchanged. Classify's reasons come first.
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
	if !j.replyPending {
		return drop.HSBadCookie
	}
	var cookie [wire.CookieLen]byte
	if _, err := aead.Open(cookie[:0], reply.Nonce()[:], reply.Cookie(), j.lastMAC1[:]); err != nil {
		return drop.HSBadCookie
	}
	j.cookie, j.received, j.valid, j.replyPending = cookie, now, true, false
	return drop.None
}

// Wipe erases the cookie and the mac1 that a reply could answer.
func (j *CookieJar) Wipe() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.forget()
	j.lastMAC1, j.replyPending = [wire.MACLen]byte{}, false
}

func (j *CookieJar) forget() { j.cookie, j.valid = [wire.CookieLen]byte{}, false }
