// SPDX-License-Identifier: Apache-2.0

package uapitest

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// RandomStatus returns a status whose fields often have unusual values. Handshakes are at most three years
// before now and at most an hour after it.
func RandomStatus(r *rand.Rand, name string, now time.Time) config.Status {
	st := config.Status{
		Name:       name,
		ListenPort: uint16(pick(r, 0, 1, r.Uint64N(1<<16))),
		FwMark:     uint32(pick(r, 0, 1, r.Uint64N(1<<32))),
	}
	if r.IntN(4) > 0 {
		st.PrivateKey = noise.PrivateKey(randomBytes(r)).Clamp()
		st.PublicKey = st.PrivateKey.Public()
	}
	for range r.IntN(12) {
		st.Peers = append(st.Peers, randomPeer(r, now))
	}
	return st
}

func randomPeer(r *rand.Rand, now time.Time) config.PeerStatus {
	p := config.PeerStatus{
		PublicKey: noise.PublicKey(randomBytes(r)),
		Endpoint:  randomEndpoint(r),
		RxBytes:   randomCount(r),
		TxBytes:   randomCount(r),
		Keepalive: uint16(pick(r, 0, 1, 25, 60, r.Uint64N(1<<16))),
	}
	if r.IntN(2) == 0 {
		p.PresharedKey = noise.PresharedKey(randomBytes(r))
	}
	if r.IntN(4) > 0 {
		age := time.Duration(pick(r, 0, 1, r.Uint64N(300), r.Uint64N(90_000), r.Uint64N(3*365*86400))) * time.Second
		if r.IntN(8) == 0 {
			age = -time.Hour
		}
		p.LastHandshake = time.Unix(now.Add(-age).Unix(), int64(r.IntN(3)))
	}
	for range r.IntN(4) {
		addr := randomAddr(r)
		p.AllowedIPs = append(p.AllowedIPs, netip.PrefixFrom(addr, r.IntN(addr.BitLen()+1)).Masked())
	}
	return p
}

func randomEndpoint(r *rand.Rand) config.Endpoint {
	if r.IntN(4) == 0 {
		return config.Endpoint{}
	}
	addr := randomAddr(r)
	ep := config.Endpoint{AddrPort: netip.AddrPortFrom(addr, uint16(r.Uint64()))}
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		ep.Scope = uint32(pick(r, 1, 4077)) // the loopback interface, and a missing one
	}
	return ep
}

func randomAddr(r *rand.Rand) netip.Addr {
	b := randomBytes(r)
	for i := range 16 {
		if r.IntN(3) == 0 { // runs of zeros have a text form of their own
			b[i] = 0
		}
	}
	switch r.IntN(6) {
	case 0:
		return netip.AddrFrom16([16]byte(b[:16]))
	case 1: // link-local
		copy(b[:8], []byte{0xfe, 0x80, 0, 0, 0, 0, 0, 0})
		return netip.AddrFrom16([16]byte(b[:16]))
	case 2: // IPv4-mapped
		copy(b[:12], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff})
		return netip.AddrFrom16([16]byte(b[:16]))
	case 3: // IPv4-compatible
		clear(b[:12])
		return netip.AddrFrom16([16]byte(b[:16]))
	}
	return netip.AddrFrom4([4]byte(b[:4]))
}

// randomCount is often next to a power of 1024, where the unit changes.
func randomCount(r *rand.Rand) uint64 {
	unit := uint64(1) << (10 * r.IntN(6))
	return pick(r, 0, 0, unit-1, unit, unit+r.Uint64N(unit), r.Uint64())
}

func randomBytes(r *rand.Rand) (b [32]byte) {
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
	return b
}

func pick(r *rand.Rand, values ...uint64) uint64 {
	return values[r.IntN(len(values))]
}
