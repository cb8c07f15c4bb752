// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
)

// FuzzClassify checks that every accessor is safe on whatever Classify accepts, and stays within it.
func FuzzClassify(f *testing.F) {
	for _, size := range []int{0, 3, 31, 32, 33, 64, 92, 147, 148, 1452} {
		for typ := range byte(6) {
			f.Add(message(size, typ, 0, 0, 0))
		}
	}
	f.Add(message(148, 1, 0, 0, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		typ, reason := Classify(b)
		if (typ == 0) == (reason == drop.None) {
			t.Fatalf("type %v with reason %v", typ, reason)
		}
		read := 0
		if reason == drop.None {
			ReceiverIndex(b)
			read = readAll(b, typ)
		}
		if typ != 0 && read != len(b) {
			t.Fatalf("the fields of %v make %d bytes of %d", typ, read, len(b))
		}
	})
}

// readAll returns how many bytes the fields of a classified message have in sum.
func readAll(b []byte, typ Type) int {
	const head = 4
	switch typ {
	case TypeInitiation:
		m, _ := AsInitiation(b)
		macs, _ := SplitMACs(b)
		m.Sender()
		return head + 4 + len(m.Ephemeral()) + len(m.Static()) + len(m.Timestamp()) + len(macs.MAC1[:]) + len(macs.MAC2[:])
	case TypeResponse:
		m, _ := AsResponse(b)
		macs, _ := SplitMACs(b)
		m.Sender()
		m.Receiver()
		return head + 8 + len(m.Ephemeral()) + len(m.Empty()) + len(macs.MAC1[:]) + len(macs.MAC2[:])
	case TypeCookieReply:
		m, _ := AsCookieReply(b)
		m.Receiver()
		return head + 4 + len(m.Nonce()) + len(m.Cookie())
	default:
		DataReceiver(b)
		Counter(b)
		return head + 4 + 8 + len(Ciphertext(b))
	}
}
