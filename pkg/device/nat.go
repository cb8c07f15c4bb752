// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"net/netip"
)

// natError is why there is no spreading through a NAT: it has a mapping for the canonical ports only, and others would be
// dropped or come out as somebody else's.
type natError struct{ behind, says, seen string }

// Error names both views.
func (e *natError) Error() string {
	return fmt.Sprintf("%s is behind a NAT: it is %s to itself, and %s to the other side", e.behind, e.says, e.seen)
}

// findNAT compares where each side is to itself and to the other, as IKE does (RFC 7296, section 2.23). Source ports say
// nothing of the canonical one, neither the one that a hello came from nor one that the peer takes for our endpoint. The
// caller holds mu.
func (p *Peer) findNAT(m *pendingHello) error {
	seen := m.from.Dst
	if m.fromSource() {
		seen = netip.AddrPortFrom(seen.Addr(), m.hello.Own.Port())
	}
	if differ(m.hello.Own, seen) {
		return &natError{behind: "the peer", says: m.hello.Own.String(), seen: seen.String()}
	}
	ref := p.dev.port.Load()
	if ref == nil {
		return nil
	}
	own, seen := netip.AddrPortFrom(m.from.Src, ref.LocalPort()), m.hello.Peer
	if p.dev.spreadPorts().Contains(seen.Port()) {
		seen = netip.AddrPortFrom(seen.Addr(), own.Port())
	}
	if differ(own, seen) {
		return &natError{behind: "this host", says: own.String(), seen: seen.String()}
	}
	return nil
}

// differ tells whether two views of one endpoint contradict each other. An address that is not known contradicts none.
func differ(a, b netip.AddrPort) bool {
	known := a.Addr().IsValid() && b.Addr().IsValid()
	return a.Port() != b.Port() || known && a.Addr().WithZone("") != b.Addr().WithZone("")
}
