// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"encoding/binary"
	"slices"
	"testing"
)

// attribute is a netlink attribute, padded.
func attribute(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = append(binary.NativeEndian.AppendUint16(b, kind), value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func reply(attributes ...[]byte) []byte {
	return slices.Concat(attributes...)
}

func u64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func TestCapabilitiesAreParsed(t *testing.T) {
	tests := []struct {
		name   string
		answer []byte
		want   Capabilities
	}{
		{"nothing", reply(), Capabilities{}},
		{
			"a veth", reply(attribute(netdevXDPFeatures, u64(0x63)...)),
			Capabilities{Native: true},
		},
		{
			"zero-copy", reply(attribute(netdevIfindex, u32(2)...), attribute(netdevXDPFeatures, u64(0x2f)...),
				attribute(netdevXSKFeatures, u64(3)...)),
			Capabilities{Native: true, ZeroCopy: true, TxChecksum: true},
		},
		{"zero-copy without redirecting", reply(attribute(netdevXDPFeatures, u64(0x9)...)), Capabilities{}},
	}
	for _, test := range tests {
		if got, err := parseCapabilities(test.answer); err != nil || got != test.want {
			t.Errorf("%s: got %+v, %v, want %+v", test.name, got, err, test.want)
		}
	}
	for _, bad := range [][]byte{{1, 1, 0}, {200, 0, 3, 0}, {5}, attribute(netdevXDPFeatures, 0xff, 0xff)} {
		if _, err := parseCapabilities(bad); err == nil {
			t.Errorf("% x is accepted", bad)
		}
	}
}

func FuzzParseCapabilities(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(reply(attribute(netdevXDPFeatures, u64(0x2f)...)))
	f.Add([]byte{200, 0, 3, 0})
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{5, 0, 3, 0, 9}) // without its padding
	f.Fuzz(func(t *testing.T, message []byte) {
		c, err := parseCapabilities(message)
		if err != nil && c != (Capabilities{}) {
			t.Errorf("got %+v with error %v, want no capabilities", c, err)
		}
		if c.ZeroCopy && !c.Native {
			t.Errorf("got %+v", c)
		}
	})
}
