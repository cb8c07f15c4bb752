// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"net/netip"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Dialect selects the keys that a file may have.
type Dialect uint8

const (
	WG     Dialect = iota // the keys of wg(8), for setconf, addconf and syncconf
	Quick                 // the keys of WG, and in [Interface] wg-quick(8)'s and ropewalk's
	Daemon                // the keys of WG, and in [Interface] ropewalk's own that can change while a tunnel runs, for run --config
)

// File is a parsed file. A nil or zero field was not given.
type File struct {
	Interface Interface
	Peers     []Peer
	Warnings  []string // texts for the user, worded as wg(8) does
	// KeyElsewhere is for callers: the private key does not come from the file, and CheckSettings does not miss it.
	KeyElsewhere bool
	// Repeated has a text for each key that replaces an earlier one.
	Repeated []string
}

// Interface holds the keys of the [Interface] sections: wg(8)'s, then wg-quick's from Address, then ropewalk's.
type Interface struct {
	PrivateKey *noise.PrivateKey
	ListenPort *uint16
	FwMark     *uint32

	Address    []netip.Prefix // with host bits; an address without prefix length has the full length
	DNS        []Nameserver
	DNSSearch  []string
	MTU        int    // bytes
	Table      string // "", "auto", "off", a number or a name of /etc/iproute2/rt_tables
	SaveConfig bool
	PreUp      []string // commands in the order given, without their comments; %i is not replaced
	PostUp     []string
	PreDown    []string
	PostDown   []string

	config.Settings
	Lanes   int    // 0 for the default
	Metrics string // host:port to serve metrics at, "" for none
}

// Peer holds the keys of one [Peer] section.
type Peer struct {
	Name         string // of a comment such as "# Name = laptop"; empty for none
	PublicKey    noise.PublicKey
	PresharedKey *noise.PresharedKey
	AllowedIPs   []config.AllowedIP // in the order given, masked
	// ModifyAllowedIPs is set if an entry had a sign: the peer's other allowed IPs stay. Otherwise they are replaced.
	ModifyAllowedIPs bool
	Endpoint         string  // host:port or [host]:port, the host not resolved yet; valid for a Resolver
	Keepalive        *uint16 // seconds, 0 for off
	PostQuantum      *config.PostQuantum
}
