// SPDX-License-Identifier: Apache-2.0

package config

import (
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// MaxLanes is the largest number of lanes: the queue limit of a TUN device (MAX_TAP_QUEUES in Linux).
const MaxLanes = 256

// SpreadMode selects the peers towards which a device spreads flows over source ports. The zero mode is SpreadAuto.
type SpreadMode uint8

// The modes.
const (
	SpreadAuto SpreadMode = iota // towards peers that have announced in a hello that they gather
	SpreadOff                    // never
	SpreadOn                     // towards every peer; the administrator has made sure that all gather
)

var spreadModes = names{"auto", "off", "on"}

// ParseSpreadMode returns the mode of that name, in any case.
func ParseSpreadMode(s string) (SpreadMode, error) { return parseName[SpreadMode](spreadModes, s) }

// String returns the name: auto, off or on.
func (m SpreadMode) String() string { return spreadModes.of(int(m)) }

// Disables reports whether s has no effect with this mode. It is a reason for a warning only: spread may be off for a short time.
func (m SpreadMode) Disables(s Spray) bool { return m == SpreadOff && s != SprayOff }

// MarshalText implements encoding.TextMarshaler with String.
func (m SpreadMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseSpreadMode.
func (m *SpreadMode) UnmarshalText(text []byte) (err error) {
	*m, err = ParseSpreadMode(string(text))
	return err
}

// PeerSpread is a snapshot of the spreading towards one peer.
type PeerSpread struct {
	Active  bool   `json:"active"`           // flows to the peer are spread
	Ports   int    `json:"ports"`            // source ports in use towards it; 0 unless active
	Planned bool   `json:"planned"`          // the ports are from the peer's port plan
	Gathers bool   `json:"gathers"`          // the peer has announced that it gathers
	Sprays  int    `json:"sprays,omitempty"` // source ports over which one large flow may be sprayed; 0 for none
	Reason  string `json:"reason,omitempty"` // why not active, for display; empty when active
	// Blocked lists the source ports that the path does not admit. Their flows leave from the
	// listen port.
	Blocked []uint16 `json:"blocked,omitempty"`
}

// SpreadReport is a device's status of spreading: the part of Status for which the UAPI's get operation has no keys.
// It is the member "spread" of the stats operation's JSON, and contains no secrets.
type SpreadReport struct {
	Mode      SpreadMode            `json:"mode"`
	FirstPort uint16                `json:"first_port"` // of SpreadPorts
	LastPort  uint16                `json:"last_port"`
	Spray     Spray                 `json:"spray"`
	Lanes     int                   `json:"lanes"`
	Peers     map[string]PeerSpread `json:"peers"` // by public key, in base64
}

// Ports returns the range of source ports.
func (r *SpreadReport) Ports() spread.Ports {
	return spread.Ports{First: r.FirstPort, Last: r.LastPort}
}

// AddSpread stores a report in st. Peers that are not in the report get the zero PeerSpread.
func (st *Status) AddSpread(r SpreadReport) {
	st.Spread, st.Spray, st.Lanes = r.Mode, r.Spray, r.Lanes
	st.SpreadPorts = r.Ports()
	byKey := make(map[noise.PublicKey]PeerSpread, len(r.Peers))
	for text, p := range r.Peers {
		if key, err := noise.ParseBase64[noise.PublicKey](text); err == nil {
			byKey[key] = p
		}
	}
	for i := range st.Peers {
		st.Peers[i].Spread = byKey[st.Peers[i].PublicKey]
	}
}
