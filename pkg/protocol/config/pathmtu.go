// SPDX-License-Identifier: Apache-2.0

package config

import "fmt"

// PathMTU is a snapshot of the path MTU discovery towards one peer.
type PathMTU struct {
	Bytes      int          `json:"bytes"`       // the largest outer IP packet that data may have; 0 if not known
	InnerBytes int          `json:"inner_bytes"` // the largest inner packet that fits; 0 if all do, or if not known
	State      PathMTUState `json:"state"`
}

// PathMTUState says how the path MTU was found.
type PathMTUState string

// The states of path MTU discovery.
const (
	PathMTUUnknown     PathMTUState = "unknown"     // there is no session; or the peer answers no probes, and outer fragments are permitted
	PathMTUSearching   PathMTUState = "searching"   // probes are being sent; Bytes may still change
	PathMTUConfirmed   PathMTUState = "confirmed"   // a probe of Bytes was answered
	PathMTUUnreachable PathMTUState = "unreachable" // no probe of any size is answered
	PathMTURoute       PathMTUState = "route"       // the MTU of the route, smaller than the size that probes have found, if any
	PathMTUHost        PathMTUState = "host"        // this host refuses larger packets than its route carries, as with IPsec
	PathMTUICMP        PathMTUState = "icmp"        // a router has reported it, for a packet that was sent from here
)

// ICMPErrorCounts counts ICMP errors that report a path MTU.
type ICMPErrorCounts struct {
	Believed uint64 `json:"believed"` // they quote a data message of a present session
	Ignored  uint64 `json:"ignored"`
}

// PathMTUReport is the path MTU of each peer, by public key in base64. It is the member "path_mtu" of the stats operation's JSON.
type PathMTUReport map[string]PathMTU

// AddPathMTU stores a report in st. Peers that are not in the report get the zero PathMTU.
func (st *Status) AddPathMTU(r PathMTUReport) {
	for i := range st.Peers {
		st.Peers[i].PathMTU = r[st.Peers[i].PublicKey.Base64()]
	}
}

// String describes the path MTU for people; it is empty if nothing is known.
func (p PathMTU) String() string {
	var text string
	switch {
	case p.State == PathMTUConfirmed:
		text = fmt.Sprintf("%d bytes, confirmed by probes", p.Bytes)
	case p.State == PathMTUSearching && p.Bytes > 0:
		text = fmt.Sprintf("%d bytes, probing larger sizes", p.Bytes)
	case p.State == PathMTUSearching:
		text = "probing"
	case p.State == PathMTUUnreachable:
		return "no probe of any size is answered"
	case p.State == PathMTURoute:
		text = fmt.Sprintf("%d bytes, the MTU of the route", p.Bytes)
	case p.State == PathMTUHost:
		text = fmt.Sprintf("%d bytes, this host refuses larger packets", p.Bytes)
	case p.State == PathMTUICMP:
		text = fmt.Sprintf("%d bytes, reported by a router", p.Bytes)
	}
	switch {
	case p.TooSmallForIPv6():
		text += fmt.Sprintf(", inner packets of at most %d bytes: too small for IPv6", p.InnerBytes)
	case p.InnerBytes > 0:
		text += fmt.Sprintf(", inner packets of at most %d bytes", p.InnerBytes)
	}
	return text
}

// TooSmallForIPv6 reports whether the path carries no inner packet of 1,280 bytes, the minimum MTU of IPv6 (RFC 8200, section 5).
func (p *PathMTU) TooSmallForIPv6() bool { return p.InnerBytes > 0 && p.InnerBytes < 1280 }
