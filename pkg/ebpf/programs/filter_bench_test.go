// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// BenchmarkErrorFilter measures what each packet of a container's device costs. BenchmarkEmptyProgram's is to be subtracted.
func BenchmarkErrorFilter(b *testing.B) {
	udp4, udp6 := data(us4, them4).bytes(), data(us6, them6).bytes()
	p, err := LoadErrorFilter(SpreadOptions{L2: true})
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { expect.NoError(b, p.Close()) })
	for name, in := range map[string][]byte{
		"v4 TCP":  set(udp4, 14+9, byte(packet.TCP)),
		"v4 UDP":  udp4,
		"v4 ICMP": set(udp4, 14+9, byte(packet.ICMP)),
		"v6 TCP":  set(udp6, 14+6, byte(packet.TCP)),
		"v6 UDP":  udp6,
		"v6 ICMP": set(udp6, 14+6, byte(packet.ICMPv6)),
	} {
		b.Run(name, func(b *testing.B) { repeatRun(b, p, in) })
	}
}
