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

// parseEndpoint accepts address:port and [address%zone]:port. wg(8) writes the zone as an interface name, formatEndpoint as an index.
func parseEndpoint(s string) (*config.Endpoint, error) {
	ap, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, invalidError("want address:port, got %d other bytes", len(s))
	}
	if n, err := strconv.ParseUint(ap.Addr().Zone(), 10, 32); err == nil {
		return &config.Endpoint{AddrPort: netip.AddrPortFrom(ap.Addr().WithZone(""), ap.Port()), Scope: uint32(n)}, nil
	}
	ep, err := NewEndpoint(ap)
	if err != nil {
		return nil, invalidError("%w", err)
	}
	return &ep, nil
}

// NewEndpoint returns the endpoint of an address whose zone is the name, or else the index, of an interface of this host. It returns an
// error if there is no interface of that name.
func NewEndpoint(at netip.AddrPort) (config.Endpoint, error) {
	ep := config.Endpoint{AddrPort: netip.AddrPortFrom(at.Addr().WithZone(""), at.Port())}
	var err error
	if zone := at.Addr().Zone(); zone != "" {
		ep.Scope, err = zoneIndex(zone)
	}
	return ep, err
}

func zoneIndex(zone string) (uint32, error) {
	ifi, err := net.InterfaceByName(zone)
	if n, numErr := strconv.ParseUint(zone, 10, 32); err != nil && numErr == nil {
		return uint32(n), nil
	}
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
