// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"encoding/binary"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

func TestOnlyDataMessagesNeverWait(t *testing.T) {
	for _, c := range []struct {
		kind wire.Type
		size int
		want bool
	}{
		{wire.TypeInitiation, wire.InitiationSize, true},
		{wire.TypeResponse, wire.ResponseSize, true},
		{wire.TypeCookieReply, wire.CookieReplySize, true},
		{wire.TypeData, wire.DataOverhead, false},
		{wire.TypeData, 1452, false},
		{wire.TypeData, wire.DataOverhead - 1, true},
		{77, 1452, true},
		{0, 0, true},
	} {
		b := make([]byte, max(c.size, 4))
		binary.LittleEndian.PutUint32(b, uint32(c.kind))
		if got := mayWait(b[:c.size]); got != c.want {
			t.Errorf("%d bytes of type %d: got %t, want %t", c.size, c.kind, got, c.want)
		}
	}
}
