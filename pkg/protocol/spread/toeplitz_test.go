// SPDX-License-Identifier: Apache-2.0

package spread

import (
	"bytes"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// vectors are Microsoft's "Verifying the RSS hash calculation": destination, source, hash with and without ports.
var vectors = []struct { //nolint:gochecknoglobals // a table of two tests
	dst, src         string
	tuple, addresses uint32
}{
	{"161.142.100.80:1766", "66.9.149.187:2794", 0x51ccc178, 0x323e8fc2},
	{"65.69.140.83:4739", "199.92.111.2:14230", 0xc626b0ea, 0xd718262a},
	{"12.22.207.184:38024", "24.19.198.95:12898", 0x5c2b394a, 0xd2d0a5de},
	{"209.142.163.6:2217", "38.27.205.30:48228", 0xafc7327f, 0x82989176},
	{"202.188.127.2:1303", "153.39.163.191:44251", 0x10e828a2, 0x5d1809c5},
	{"[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x40207d3d, 0x2cc18cd5},
	{"[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0xdde51bbf, 0x0f0c461c},
	{"[fe80::200:f8ff:fe21:67cf]:38024", "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", 0x02d1feef, 0x4b61e985},
}

func tupleBytes(src, dst netip.AddrPort) []byte {
	var b bytes.Buffer
	b.Write(src.Addr().AsSlice())
	b.Write(dst.Addr().AsSlice())
	for _, port := range []uint16{src.Port(), dst.Port()} {
		b.Write([]byte{byte(port >> 8), byte(port)})
	}
	return b.Bytes()
}

func TestToeplitzMatchesMicrosoftVectors(t *testing.T) {
	for _, v := range vectors {
		src, dst := netip.MustParseAddrPort(v.src), netip.MustParseAddrPort(v.dst)
		input := tupleBytes(src, dst)
		if got := toeplitz(MicrosoftKey(), input); got != v.tuple {
			t.Errorf("%s to %s: got %#x, want %#x", src, dst, got, v.tuple)
		}
		if got := toeplitz(MicrosoftKey(), input[:len(input)-portsLen]); got != v.addresses {
			t.Errorf("%s to %s: got %#x, want %#x", src.Addr(), dst.Addr(), got, v.addresses)
		}
	}
}

// slowToeplitz shifts the whole key.
func slowToeplitz(key, input []byte) uint32 {
	window := new(big.Int).SetBytes(key)
	hash := uint32(0)
	for _, b := range input {
		for bit := 7; bit >= 0; bit-- {
			if b>>bit&1 == 1 {
				top := new(big.Int).Rsh(window, uint(8*len(key)-32))
				hash ^= uint32(top.Uint64())
			}
			window.Lsh(window, 1)
			window.SetBit(window, 8*len(key), 0)
		}
	}
	return hash
}

func TestToeplitzMatchesReference(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		input := make([]byte, rng.IntN(37))
		key := make([]byte, len(input)+windowLen+rng.IntN(20))
		for _, b := range [][]byte{input, key} {
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
		}
		if got, want := toeplitz(key, input), slowToeplitz(key, input); got != want {
			t.Fatalf("%x under %x: got %#x, want %#x", input, key, got, want)
		}
	}
}
