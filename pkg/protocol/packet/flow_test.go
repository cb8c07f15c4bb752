// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"fmt"
	"testing"
)

func TestFlowOfReturnsPortsAsFlowHash(t *testing.T) {
	for _, tt := range []struct {
		ip   []byte
		want string
	}{
		{udp4(1000, 53), "udp 1000 53"},
		{udp6(1000, 53), "udp 1000 53"},
		{extended(udp6(1000, 53), HopByHop), "udp 1000 53"},
		{set(udp4(1000, 53), 9, byte(TCP)), "tcp 1000 53"},
		{set(udp4(1000, 53), 9, byte(SCTP)), "sctp 1000 53"},
		{set(udp4(1000, 53), 9, byte(ICMP)), "icmp 0 0"},
		{set(udp6(1000, 53), 6, byte(ICMPv6)), "ipv6-icmp 0 0"},
		{set(udp4(1000, 53), 9, 47), "47 0 0"},
		{set(udp4(1000, 53), 6, 0x20), "udp 1000 53"}, // the first fragment
		{set(udp4(1000, 53), 7, 1), "udp 0 0"},        // a later fragment
	} {
		f := FlowOf(tt.ip)
		if got := fmt.Sprint(f.Protocol, f.Source.Port(), f.Destination.Port()); got != tt.want {
			t.Errorf("packet % x: got %q, want %q", tt.ip, got, tt.want)
		}
		if f.Source.Addr() != Source(tt.ip) || f.Destination.Addr() != Destination(tt.ip) {
			t.Errorf("packet % x: got %v to %v, want %v to %v", tt.ip, f.Source, f.Destination, Source(tt.ip), Destination(tt.ip))
		}
	}
}
