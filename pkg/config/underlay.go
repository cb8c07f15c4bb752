// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"strings"
)

// UnderlayMode says by what way data messages enter and leave. The zero mode is UnderlayAuto.
type UnderlayMode uint8

// The modes. In each, UDP sockets carry handshakes and what cannot go another way.
const (
	UnderlayAuto UnderlayMode = iota // the better way for the device that leads to the peers
	UnderlayUDP                      // UDP sockets alone
	UnderlayXDP                      // AF_XDP sockets where they can be had
)

// ParseUnderlayMode returns the mode of that name, in any case.
func ParseUnderlayMode(s string) (UnderlayMode, error) {
	for _, mode := range []UnderlayMode{UnderlayAuto, UnderlayUDP, UnderlayXDP} {
		if strings.EqualFold(s, mode.String()) {
			return mode, nil
		}
	}
	return 0, errors.New("want auto, udp or xdp")
}

// String returns the name: auto, udp or xdp.
func (m UnderlayMode) String() string {
	switch m {
	case UnderlayAuto:
		return "auto"
	case UnderlayUDP:
		return "udp"
	case UnderlayXDP:
		return "xdp"
	default:
		return "unknown"
	}
}

// MarshalText implements encoding.TextMarshaler with String.
func (m UnderlayMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseUnderlayMode.
func (m *UnderlayMode) UnmarshalText(text []byte) (err error) {
	*m, err = ParseUnderlayMode(string(text))
	return err
}

// UnderlayReport says by what way data messages enter and leave, at one moment. It is the member "way" of the stats
// operation's JSON, and holds no secrets.
type UnderlayReport struct {
	Mode   UnderlayMode      `json:"mode"`             // as configured
	Way    UnderlayMode      `json:"way"`              // UnderlayUDP or UnderlayXDP, as it is
	Device string            `json:"device,omitempty"` // whose queues AF_XDP uses, or would
	How    string            `json:"how,omitempty"`    // zerocopy or copy
	Lanes  int               `json:"lanes,omitempty"`  // lanes with an AF_XDP socket that works
	Reason string            `json:"reason,omitempty"` // why this way, for people
	XDP    []XDPLane         `json:"xdp,omitempty"`    // by lane
	Events map[string]uint64 `json:"events,omitempty"` // what the XDP program made of packets to the port
	Drops  map[string]uint64 `json:"drops,omitempty"`  // those that it dropped, by reason

	ReceiveCPUs *ReceiveCPUsReport `json:"rx_cpus,omitempty"` // nil: none are wanted
}

// XDPLane is how one lane's AF_XDP socket is. Counters run since the port was opened.
type XDPLane struct {
	Error     string `json:"error,omitempty"` // why there is none that works
	Received  uint64 `json:"received"`        // datagrams
	Sent      uint64 `json:"sent"`
	Slow      uint64 `json:"slow"`      // runs that left by the UDP socket
	Lost      uint64 `json:"lost"`      // datagrams that the device did not take in time, or went away with
	Fallbacks uint64 `json:"fallbacks"` // how often a working socket was lost
	Malformed uint64 `json:"malformed"`
	// The frame ledger: both stay zero. Rejected were refused because they were malformed, Misowned named by who did not have them.
	Rejected uint64 `json:"rejected"`
	Misowned uint64 `json:"misowned"`
	// Frames that are out now: RXHeld received and not given back, TXHeld being written, TXKernel with the kernel, not sent yet.
	RXHeld   int `json:"rx_held"`
	TXHeld   int `json:"tx_held"`
	TXKernel int `json:"tx_kernel"`
}
