// SPDX-License-Identifier: Apache-2.0

package config

// UnderlayMode selects the path of data messages: UDP or AF_XDP sockets. The zero mode is UnderlayAuto.
type UnderlayMode uint8

// The modes. In each, UDP sockets carry handshakes and the messages that AF_XDP cannot.
const (
	UnderlayAuto UnderlayMode = iota // UDP sockets, unless AF_XDP was measured to be better on the device
	UnderlayUDP                      // UDP sockets only
	UnderlayXDP                      // AF_XDP sockets where available
)

var underlayModes = names{"auto", "udp", "xdp"}

// ParseUnderlayMode returns the mode of that name, in any case.
func ParseUnderlayMode(s string) (UnderlayMode, error) {
	return parseName[UnderlayMode](underlayModes, s)
}

// String returns the name: auto, udp or xdp.
func (m UnderlayMode) String() string { return underlayModes.of(int(m)) }

// MarshalText implements encoding.TextMarshaler with String.
func (m UnderlayMode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler with ParseUnderlayMode.
func (m *UnderlayMode) UnmarshalText(text []byte) (err error) {
	*m, err = ParseUnderlayMode(string(text))
	return err
}

// UnderlayReport is a snapshot of the path of data messages. It is the member "path" of the stats operation's JSON, and
// contains no secrets.
type UnderlayReport struct {
	Mode   UnderlayMode      `json:"mode"`             // as configured
	Path   UnderlayMode      `json:"path"`             // the path in use: UnderlayUDP or UnderlayXDP
	Device string            `json:"device,omitempty"` // the device whose queues AF_XDP uses, or would use
	How    string            `json:"how,omitempty"`    // the AF_XDP mode: zerocopy or copy
	Lanes  int               `json:"lanes,omitempty"`  // lanes with a working AF_XDP socket
	Reason string            `json:"reason,omitempty"` // why this path is in use, for display
	XDP    []XDPLane         `json:"xdp,omitempty"`    // by lane
	Events map[string]uint64 `json:"events,omitempty"` // the XDP program's counters for packets to the port
	Drops  map[string]uint64 `json:"drops,omitempty"`  // packets that it dropped, by reason
}

// XDPLane is the state of one lane's AF_XDP socket. Counters start when the port is opened.
type XDPLane struct {
	Error     string `json:"error,omitempty"` // why it does not work
	Received  uint64 `json:"received"`        // datagrams
	Sent      uint64 `json:"sent"`
	Slow      uint64 `json:"slow"`      // runs sent by the UDP socket instead
	Lost      uint64 `json:"lost"`      // datagrams that the device did not accept, or that were lost with it
	Fallbacks uint64 `json:"fallbacks"` // how often a working socket failed
	Stalls    uint64 `json:"stalls"`    // failed sockets whose device did not send their datagrams
	Malformed uint64 `json:"malformed"`
	// Rejected counts frames that were empty, too long or outside of the shared memory. FrameOwnershipErrors counts
	// descriptors of frames that the kernel or the process did not own. Both should stay zero.
	Rejected             uint64 `json:"rejected"`
	FrameOwnershipErrors uint64 `json:"frame_ownership_errors"`
	// Frames in use: RXHeld received and not refilled, TXHeld being written, TXKernel queued in the kernel.
	RXHeld   int `json:"rx_held"`
	TXHeld   int `json:"tx_held"`
	TXKernel int `json:"tx_kernel"`
}
