// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.zx2c4.com/wireguard/device"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// bytesOf is what wireguard-go takes for a source address.
func bytesOf(src netip.AddrPort) []byte {
	b, _ := src.MarshalBinary()
	return b
}

func TestCookieJarMatchesIndependentChecker(t *testing.T) {
	a, b := newSides(t)
	_, msg := initiate(t, a)
	jar, src := NewCookieJar(a.remote), bytesOf(testSource(1000))
	var them device.CookieChecker
	them.Init(device.NoisePublicKey(b.Public()))

	if err := jar.AddMACs(msg[:], 0); err != nil {
		t.Fatal(err)
	}
	if !them.CheckMAC1(msg[:]) || them.CheckMAC2(msg[:], src) {
		t.Fatal("wireguard-go: want mac1 valid and mac2 invalid without a cookie")
	}
	theirs, err := them.CreateReply(msg[:], msg.Sender(), src)
	if err != nil {
		t.Fatal(err)
	}
	var reply bytes.Buffer
	if err := binary.Write(&reply, binary.LittleEndian, theirs); err != nil {
		t.Fatal(err)
	}
	if reason := jar.ConsumeReply(reply.Bytes(), 0); reason != drop.None {
		t.Fatalf("consuming the cookie reply %x of wireguard-go: got drop reason %v", reply.Bytes(), reason)
	}
	if err := jar.AddMACs(msg[:], 1); err != nil {
		t.Fatal(err)
	}
	if !them.CheckMAC1(msg[:]) || !them.CheckMAC2(msg[:], src) || them.CheckMAC2(msg[:], bytesOf(testSource(1001))) {
		t.Error("wireguard-go: want mac1 and mac2 valid with a cookie, for this source only")
	}
}

func TestCookieCheckerMatchesIndependentGenerator(t *testing.T) {
	a, b := newSides(t)
	_, msg := initiate(t, a)
	checker := NewCookieChecker(b.Public())
	var them device.CookieGenerator
	them.Init(device.NoisePublicKey(b.Public()))

	them.AddMacs(msg[:])
	if ok1, ok2 := checker.Check(msg[:], testSource(1000), 0); !ok1 || ok2 {
		t.Fatalf("MACs of wireguard-go without a cookie: got mac1 %v, mac2 %v, want true, false", ok1, ok2)
	}
	reply := new(wire.CookieReply)
	if err := checker.CreateReply(reply, msg[:], testSource(1000), 0, source(1)); err != nil {
		t.Fatal(err)
	}
	theirs := new(device.MessageCookieReply)
	if err := binary.Read(bytes.NewReader(reply[:]), binary.LittleEndian, theirs); err != nil {
		t.Fatal(err)
	}
	if theirs.Type != device.MessageCookieReplyType || theirs.Receiver != 0xa1 || !them.ConsumeReply(theirs) {
		t.Fatalf("wireguard-go rejected the cookie reply: type %d, receiver %#x, want %d, 0xa1", theirs.Type, theirs.Receiver, device.MessageCookieReplyType)
	}
	them.AddMacs(msg[:])
	if ok1, ok2 := checker.Check(msg[:], testSource(1000), 1); !ok1 || !ok2 {
		t.Errorf("MACs of wireguard-go with a cookie: got mac1 %v, mac2 %v, want both valid", ok1, ok2)
	}
}
