// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Address formats an address as inet_ntop(3) does. It differs from netip in one case: the last 32
// bits of an IPv4-compatible address (RFC 4291 §2.5.5.1) are in IPv4 form, ::1.2.3.4.
func Address(addr netip.Addr) string {
	if !addr.Is6() {
		return addr.String()
	}
	b := addr.As16()
	if [12]byte(b[:12]) != [12]byte{} || b[12]|b[13] == 0 {
		return addr.String()
	}
	text := "::" + netip.AddrFrom4([4]byte(b[12:])).String()
	if zone := addr.Zone(); zone != "" {
		text += "%" + zone
	}
	return text
}

// Prefix formats a prefix. Its address is formatted by Address.
func Prefix(prefix netip.Prefix) string {
	return Address(prefix.Addr()) + "/" + strconv.Itoa(prefix.Bits())
}

// Endpoint formats an endpoint as wg(8) does: IPv6 in brackets, the zone as the name that zoneName returns, or as a number if it returns
// none. An unknown endpoint is "(none)". zoneName may be nil.
func Endpoint(ep config.Endpoint, zoneName func(uint32) string) string {
	addr := ep.AddrPort.Addr()
	switch {
	case !ep.AddrPort.IsValid():
		return none
	case addr.Is4():
		return ep.AddrPort.String()
	case ep.Scope != 0:
		// netip drops the zone of an IPv4-mapped address, wg(8) does not, so it is joined as text.
		return fmt.Sprintf("[%s%%%s]:%d", Address(addr), zone(addr, ep.Scope, zoneName), ep.AddrPort.Port())
	}
	return fmt.Sprintf("[%s]:%d", Address(addr), ep.AddrPort.Port())
}

// zone follows getnameinfo(3): only link-local addresses have interface names.
func zone(addr netip.Addr, scope uint32, name func(uint32) string) string {
	if name != nil && (addr.IsLinkLocalUnicast() || addr.IsLinkLocalMulticast()) {
		if s := name(scope); s != "" {
			return s
		}
	}
	return strconv.FormatUint(uint64(scope), 10)
}
