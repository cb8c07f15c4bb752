// SPDX-License-Identifier: Apache-2.0

// Package conffile reads and writes the configuration files of wg(8) and wg-quick(8).
package conffile

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// Dialect says which keys a file may have.
type Dialect uint8

const (
	WG    Dialect = iota // the keys of wg(8), for setconf, addconf and syncconf
	Quick                // those, and in [Interface] wg-quick(8)'s and ropewalk's
)

// File is a parsed file. A nil or zero field was not given.
type File struct {
	Interface Interface
	Peers     []Peer
	Warnings  []string // for people, in the words of wg(8)
}

// Interface is what the [Interface] sections say. The fields after FwMark are wg-quick's, and then ropewalk's.
type Interface struct {
	PrivateKey *noise.PrivateKey
	ListenPort *uint16
	FwMark     *uint32

	Address    []netip.Prefix // with the host's bits; an address without prefix length has its full length
	DNS        []netip.Addr
	DNSSearch  []string
	MTU        int    // bytes
	Table      string // "", "auto", "off", a number or a name of /etc/iproute2/rt_tables
	SaveConfig bool
	PreUp      []string // commands in the order given, without their comments; %i is not replaced
	PostUp     []string
	PreDown    []string
	PostDown   []string

	Spread      *config.SpreadMode
	Lanes       int           // 0 for the default
	SpreadPorts *spread.Ports // as config.CheckPorts wants them
	Underlay    *config.UnderlayMode
	ReceiveCPUs *config.ReceiveCPUs
	Metrics     string // host:port to serve metrics at, "" for nowhere
}

// Peer is what one [Peer] section says.
type Peer struct {
	PublicKey    noise.PublicKey
	PresharedKey *noise.PresharedKey
	AllowedIPs   []config.AllowedIP // in the order given, masked
	// ModifyAllowedIPs says that an entry had a sign: the peer's other allowed IPs stay. Without one they are replaced.
	ModifyAllowedIPs bool
	Endpoint         string  // host:port or [host]:port, the host not resolved yet; valid for a Resolver
	Keepalive        *uint16 // seconds, 0 for off
}
