// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"context"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
)

// DeviceFlows has the flows in the eBPF maps of a device's programs. Their packets are encrypted: a flow is known by the hash that the
// in-kernel WireGuard leaves on them.
type DeviceFlows struct {
	DeviceStatus
	At    time.Time `json:"time"`
	Flows []Flow    `json:"flows"`
}

// Flow is a flow that has sent within the flowlet gap, after which it may change its lane. The table has neither its peer nor its bytes.
type Flow struct {
	Hash string  `json:"hash"` // the upper 16 bits; flows with equal ones share an entry
	Lane int     `json:"lane"` // its peer, which has n ports, uses port Lane modulo n
	Idle float64 `json:"idle_seconds"`
}

// Flows returns the flows of a device, or nil if nothing is attached to it.
func (h *Host) Flows(ctx context.Context, device string) (*DeviceFlows, error) {
	all, err := h.Status(ctx, device)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	p, unlock, err := h.openMounted(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	s, err := programs.OpenState(p.state(device))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	active, err := s.ActiveFlows()
	if err != nil {
		return nil, err
	}
	f := &DeviceFlows{DeviceStatus: all[0], At: time.Now(), Flows: []Flow{}}
	for _, a := range active {
		f.Flows = append(f.Flows, Flow{Hash: fmt.Sprintf("%04x", a.Hash), Lane: a.Lane, Idle: a.Idle.Seconds()})
	}
	return f, nil
}

// InterfaceCounters are counters of an in-kernel WireGuard's interface. The kernel counts no replays: wg_packet_rx_poll drops them with a
// debug message alone (drivers/net/wireguard/receive.c), and messages that fail to decrypt without any.
type InterfaceCounters struct {
	RxPackets      uint64 `json:"rx_packets"` // accepted messages, also handshakes and keepalives
	RxErrors       uint64 `json:"rx_errors"`
	RxFrameErrors  uint64 `json:"rx_frame_errors"`  // inner packets whose source is not allowed, or that are not IP
	RxLengthErrors uint64 `json:"rx_length_errors"` // inner packets whose length is wrong
	RxDropped      uint64 `json:"rx_dropped"`
}

// readInterface returns the counters of an in-kernel WireGuard, nil for another interface.
func readInterface(name string) *InterfaceCounters {
	l, err := netlink.LinkByName(name)
	if err != nil || l.Type() != "wireguard" || l.Attrs().Statistics == nil {
		return nil
	}
	s := l.Attrs().Statistics
	return &InterfaceCounters{
		RxPackets: s.RxPackets, RxErrors: s.RxErrors, RxFrameErrors: s.RxFrameErrors, RxLengthErrors: s.RxLengthErrors, RxDropped: s.RxDropped,
	}
}
