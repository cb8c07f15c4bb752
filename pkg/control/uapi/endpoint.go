// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// parseEndpoint accepts address:port and [address%zone]:port. wg(8) writes the zone as an interface name.
func parseEndpoint(s string) (*config.Endpoint, error) {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, invalidError("want address:port, got %d other bytes", len(s))
	}
	ep := &config.Endpoint{AddrPort: netip.AddrPortFrom(ap.Addr().WithZone(""), ap.Port())}
	if zone := ap.Addr().Zone(); zone != "" {
		if ep.Scope, err = zoneIndex(zone); err != nil {
			return nil, invalidError("%w", err)
		}
	}
	return ep, nil
}

func zoneIndex(zone string) (uint32, error) {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // without "route ip+net"
	}
	if err != nil {
		return 0, fmt.Errorf("looking up zone %q: %w", zone, err)
	}
	return uint32(ifi.Index), nil
}

// formatEndpoint writes the zone as a number, which every implementation of the protocol accepts.
func formatEndpoint(ep config.Endpoint) string {
	addr := ep.AddrPort.Addr()
	if ep.Scope != 0 && addr.Is6() {
		addr = addr.WithZone(strconv.FormatUint(uint64(ep.Scope), 10))
	}
	return netip.AddrPortFrom(addr, ep.AddrPort.Port()).String()
}
