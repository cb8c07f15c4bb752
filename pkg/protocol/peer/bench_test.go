// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"testing"

	"github.com/ropewalk/ropewalk/test/cost"
)

// BenchmarkAllowedIPsLookup looks up random addresses of which each has an owner, in tables of any size.
func BenchmarkAllowedIPsLookup(b *testing.B) {
	for _, n := range []int{1, 1000, 100000} {
		for _, v6 := range []bool{false, true} {
			name := map[bool]string{false: "IPv4", true: "IPv6"}[v6]
			b.Run(name+"/"+strconv.Itoa(n)+" prefixes", func(b *testing.B) { benchmarkLookup(b, n, v6) })
		}
	}
}

func benchmarkLookup(b *testing.B, n int, v6 bool) {
	var table AllowedIPs[int]
	r := rand.New(rand.NewPCG(1, uint64(n)))
	prefixes := make([]netip.Prefix, n)
	table.Update(func(e *Editor[int]) {
		for i := range prefixes {
			prefixes[i] = randomPrefix(r, v6)
			e.Add(prefixes[i], i)
		}
	})
	addrs := make([]netip.Addr, 256)
	for i := range addrs {
		addrs[i] = prefixes[r.IntN(n)].Addr()
	}
	found := 0
	m := cost.Of(b, len(addrs), 0)
	for b.Loop() {
		for _, a := range addrs {
			if _, ok := table.Lookup(a); ok {
				found++
			}
		}
	}
	m.Report()
	if found != b.N*len(addrs) {
		b.Fatalf("%d of %d addresses found", found, b.N*len(addrs))
	}
}

// randomPrefix is the kind that sites and hosts get: 10.0.0.0/16../32, fd00::/48../64 and /128.
func randomPrefix(r *rand.Rand, v6 bool) netip.Prefix {
	if !v6 {
		a := addr4(10<<24 | r.Uint32()>>8)
		return netip.PrefixFrom(a, 16+8*r.IntN(3)).Masked()
	}
	a := [16]byte{0xfd}
	binary.BigEndian.PutUint32(a[2:], r.Uint32())
	binary.BigEndian.PutUint32(a[12:], r.Uint32())
	return netip.PrefixFrom(netip.AddrFrom16(a), []int{48, 64, 128}[r.IntN(3)]).Masked()
}

// BenchmarkAllowedIPsReplaceOneOwner replaces one owner of many: the cost must not grow with the others.
func BenchmarkAllowedIPsReplaceOneOwner(b *testing.B) {
	a := thousands(8192)
	mine := a.Prefixes(4000)
	for b.Loop() {
		a.Update(func(e *Editor[int]) {
			e.RemoveOwner(4000)
			for _, p := range mine {
				e.Add(p, 4000)
			}
		})
	}
}

func BenchmarkAllowedIPsFill(b *testing.B) {
	for b.Loop() {
		thousands(4096)
	}
}

// BenchmarkActivity notes a train sent and a train received.
func BenchmarkActivity(b *testing.B) {
	const packets = 2 * 45
	var a Activity
	m := cost.Of(b, packets, 0)
	for b.Loop() {
		a.Sent(t0, true)
		a.Received(t0, true)
	}
	m.Report()
}
