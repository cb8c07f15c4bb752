// SPDX-License-Identifier: Apache-2.0

package attack

import (
	"crypto/rand"
	"encoding/binary"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// attack is one kind of packet.
type attack struct {
	name string
	// forged sends from many addresses, else the attacker's own is used.
	forged bool
	// badChecksum gives each packet a wrong UDP checksum.
	badChecksum bool
	// session makes each packet anew, with the next counter of a session.
	session bool
	// message returns the payload of packet i.
	message func(x *attacker, i int) []byte
	// counted are the reasons under which the packets may be counted. Under load others apply than else.
	counted []drop.Reason
}

// The reasons of an initiation with a valid mac1 whose sender is unknown. rx_socket is that of trains that the socket filter refuses.
var flooded = []drop.Reason{
	drop.HSNoCookie, drop.HSInvalid, drop.HSQueueFull, drop.HSRateLimited, drop.RXSocket, drop.HSXDPSourceLimit, drop.HSXDPTotalLimit,
}

var attacks = []attack{
	{"initiations, no mac1, many addresses", true, false, false, initiation(false), append([]drop.Reason{drop.HSBadMAC1}, flooded...)},
	{"initiations, valid mac1, many addresses", true, false, false, initiation(true), flooded},
	{"initiations, valid mac1, one address", false, false, false, initiation(true), flooded},
	{"a replayed initiation of a peer", false, false, false, replayedInitiation, append([]drop.Reason{drop.HSReplay}, flooded...)},
	{"data, unknown receiver index, all sizes", true, false, false, unknownIndex, []drop.Reason{drop.RXUnknownIndex}},
	{"data, wrong UDP checksum, all sizes", true, true, false, unknownIndex, []drop.Reason{drop.RXSocket}},
	{"random bytes, all sizes", true, false, false, junk, []drop.Reason{drop.RXBadType, drop.RXTooShort}},
	{"truncated handshake messages", true, false, false, truncated, []drop.Reason{drop.RXBadLength, drop.RXTooShort}},
	{"oversized handshake messages", true, false, false, oversized, []drop.Reason{drop.RXBadLength}},
	{"cookie replies", true, false, false, cookieReply, []drop.Reason{drop.RXUnknownIndex}},
	{"a peer: replayed data", false, false, false, replayedData, []drop.Reason{drop.RXReplay}},
	{"a peer: forged inner source addresses", false, false, true, spoofed, []drop.Reason{drop.RXInnerSpoofed}},
	{"a peer: parts of post-quantum exchanges", false, false, true, parts, []drop.Reason{drop.ExchangeUnwanted, drop.ExchangeInvalid, drop.ExchangeVersion}},
	{"a peer: packets to ten peers that are offline", false, false, true, spray, []drop.Reason{drop.TXStagedOverflow, drop.TXStagedExpired}},
}

// initiation returns random initiations.
func initiation(mac1 bool) func(*attacker, int) []byte {
	return func(x *attacker, _ int) []byte {
		b := random(wire.InitiationSize)
		binary.LittleEndian.PutUint32(b, uint32(wire.TypeInitiation))
		if mac1 {
			_ = noise.NewCookieJar(x.remote).AddMACs(b, 0) // it has the length of an initiation
		}
		return b
	}
}

func replayedInitiation(x *attacker, _ int) []byte { return x.initiation }

func unknownIndex(_ *attacker, i int) []byte {
	b := random(wire.DataOverhead + 16*(i%88))
	binary.LittleEndian.PutUint32(b, uint32(wire.TypeData))
	return b
}

func junk(_ *attacker, i int) []byte { return random(i % 1472) }

func truncated(_ *attacker, i int) []byte {
	b := random(wire.InitiationSize)
	binary.LittleEndian.PutUint32(b, uint32(1+i%3))
	return b[:4+i%(wire.CookieReplySize-4)]
}

func oversized(_ *attacker, i int) []byte {
	b := random(wire.InitiationSize + 1 + i%1300)
	binary.LittleEndian.PutUint32(b, uint32(1+i%3))
	return b
}

func cookieReply(*attacker, int) []byte {
	b := random(wire.CookieReplySize)
	binary.LittleEndian.PutUint32(b, uint32(wire.TypeCookieReply))
	return b
}

func replayedData(x *attacker, _ int) []byte { return x.keepalive }

func spoofed(x *attacker, i int) []byte {
	return x.seal(innerPacket([4]byte{10, 77, 0, byte(i)}, [4]byte{10, 77, 0, 1}))
}

// parts returns parts of keys and ciphertexts whose bytes differ each time, every other one with a field of another value.
func parts(x *attacker, i int) []byte {
	kind := wire.KEMKind(1 + i%2)
	plain := wire.AppendKEMPart(nil, kind, random(kind.Size()), i%wire.KEMParts)
	if i%4 >= 2 {
		plain[4+i/4%8] ^= byte(1 + i%255)
	}
	plain = plain[:len(plain)-i%3*100]
	return x.seal(append(plain, make([]byte, -len(plain)&(wire.PaddingMultiple-1))...))
}

func spray(x *attacker, i int) []byte {
	return x.seal(innerPacket(innerAddress, [4]byte{100, 64, 0, byte(i % offlinePeers)}))
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b) // it never fails
	return b
}
