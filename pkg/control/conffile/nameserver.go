// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"net/netip"
)

// Nameserver is a DNS server.
type Nameserver struct {
	Addr netip.Addr
	Port uint16 // 0: the default; others are for systemd's resolvconf only
}

// ParseNameserver parses an address, or an address and a port as in 127.0.0.1:5335 and [::1]:5335.
func ParseNameserver(text string) (Nameserver, bool) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return Nameserver{Addr: addr}, true
	}
	server, err := netip.ParseAddrPort(text)
	return Nameserver{server.Addr(), server.Port()}, err == nil && server.Port() != 0
}

// String returns a text that ParseNameserver accepts.
func (n Nameserver) String() string {
	if n.Port == 0 {
		return n.Addr.String()
	}
	return netip.AddrPortFrom(n.Addr, n.Port).String()
}

// MarshalText implements encoding.TextMarshaler.
func (n Nameserver) MarshalText() ([]byte, error) { return []byte(n.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Nameserver) UnmarshalText(text []byte) error {
	server, ok := ParseNameserver(string(text))
	if !ok {
		return fmt.Errorf("parsing name server %q: neither an address nor an address and port", text)
	}
	*n = server
	return nil
}
