// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/packet"
)

func TestEchoRequestIsValid(t *testing.T) {
	b := echoRequest(0xabcd, 7)
	if len(b) != icmpLen || b[0] != icmpEcho || packet.Checksum(b) != 0 {
		t.Errorf("% x", b[:8])
	}
}

func TestEchoReplyMatchesRequest(t *testing.T) {
	reply := func(kind byte, id, seq uint16, options int) []byte {
		b := append(make([]byte, 20+options), echoRequest(id, seq)...)
		b[0], b[20+options] = byte(0x45+options/4), kind
		return b
	}
	if !isEchoReply(reply(icmpEchoReply, 5, 9, 0), 5, 9) || !isEchoReply(reply(icmpEchoReply, 5, 9, 8), 5, 9) {
		t.Error("the answer is not seen")
	}
	for name, b := range map[string][]byte{
		"another's":   reply(icmpEchoReply, 6, 9, 0),
		"an old one":  reply(icmpEchoReply, 5, 8, 0),
		"the request": reply(icmpEcho, 5, 9, 0),
		"cut":         reply(icmpEchoReply, 5, 9, 0)[:24],
		"nothing":     nil,
	} {
		if isEchoReply(b, 5, 9) {
			t.Errorf("%s passes for the answer", name)
		}
	}
}
