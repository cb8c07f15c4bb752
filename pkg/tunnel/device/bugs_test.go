// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

// checklist are the faults that another implementation found in itself (gotatun's changelog of 2026), and where it is
// proven that they are not here.
var checklist = []struct {
	fault, pkg, test string
}{
	{"Reject-After-Messages not enforced on the transport counter", "protocol/session", "TestRejectAfterMessagesIsEnforcedOnTheTransportCounter"},
	{"a covering prefix could spoof a more specific peer's address", "protocol/peer", "TestMoreSpecificPrefixWins"},
	{"a covering prefix could spoof a more specific peer's address", "dataplane/internal/receive", "TestCoveringPrefixCannotSpoofMoreSpecificPeer"},
	{"oversized datagrams stopped the receiver", "tunnel/device", "TestOversizedDatagramsAreCountedDrops"},
	{"oversized datagrams stopped the receiver", "dataplane/internal/receive", "TestTruncatedDatagramIsCountedAndNotOpened"},
	{"oversized coalesced datagrams stopped the receiver", "dataplane/internal/receive", "TestRunMayMixSessionsAndHandshakes"},
	{"handshake rate limit global, not per source", "protocol/peer", "TestLimiterDistinguishesSources"},
	{"handshake rate limit global, not per source", "tunnel/device", "TestUnderLoadInitiatorNeedsCookie"},
	{"cookies not bound to the source port", "protocol/noise", "TestCookieIsBoundToAddressAndPort"},
	{"cookies not bound to the source port", "tunnel/device", "TestUnderLoadInitiatorNeedsCookie"},
	{"roaming on cookie replies", "tunnel/device", "TestDoesNotRoamOnCookieReplies"},
	{"no roaming on some authenticated packets", "dataplane/internal/receive", "TestOnlyAuthenticatedMessagesRoam"},
	{"no roaming on some authenticated packets", "tunnel/device", "TestEndpointFollowsDataKeepalivesAndHandshakes"},
	{"no roaming on some authenticated packets", "tunnel/device", "TestEndpointFollowsTheResponse"},
	{"a new preshared key did not reach the handshake, or tore the session", "tunnel/device", "TestPresharedKeyChangeReachesTheNextHandshake"},
	{"a new preshared key did not reach the handshake in flight", "protocol/noise", "TestPresharedKeyMayChangeDuringHandshake"},
	{"passive keepalive for keepalives", "protocol/peer", "TestKeepalivesTriggerNoPassiveKeepalive"},
	{"passive keepalive at the wrong time", "tunnel/device", "TestReceivedDataTriggersKeepaliveAfterTenSeconds"},
	{"persistent keepalive under traffic", "tunnel/device", "TestPersistentKeepaliveOnlyWhenIdle"},
	{"no jitter on handshake retries", "tunnel/device", "TestHandshakeRetriesWithJitterThenGivesUp"},
	{"responses refused after 250 ms", "tunnel/device", "TestLateResponsesAreAccepted"},
	{"nonce counters of 32 bits", "protocol/session", "TestReserveStopsAtRejectAfterMessagesForGood"},
	{"no work without IPv6", "tunnel/device", "TestDeviceWorksWithoutIPv6"},
	{"IPv6 source address misread from the control message", "netio/underlay/udp", "TestControlMessagesAreParsed"},
	{"no end when the interface is deleted", "tunnel/device", "TestDeletedInterfaceEndsTheDevice"},
	{"replay window too small", "protocol/session", "TestWindowReachesAtLeast8192CountersBack"},
}

func TestChecklistFaultsHaveTests(t *testing.T) {
	sources := map[string][]byte{}
	for _, c := range checklist {
		if sources[c.pkg] == nil {
			sources[c.pkg] = testSources(t, filepath.Join("..", "..", filepath.FromSlash(c.pkg)))
		}
		if !bytes.Contains(sources[c.pkg], []byte("\nfunc "+c.test+"(")) {
			t.Errorf("%s: package %s has no %s", c.fault, c.pkg, c.test)
		}
	}
}

func testSources(t *testing.T, dir string) (all []byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	return all
}

// TestOversizedDatagramsAreCountedDrops sends the largest datagrams there are, by real sockets.
func TestOversizedDatagramsAreCountedDrops(t *testing.T) {
	a, b := devicetest.NewUDP(t, 1, devicetest.Options{}), devicetest.NewUDP(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	talk(t, a, b)
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(a.Outside(false)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	before := total(a.AllDrops())
	for kind := range byte(6) {
		if _, err := c.Write(append([]byte{kind, 0, 0, 0}, make([]byte, 65503)...)); err != nil {
			t.Fatal(err)
		}
	}
	a.Await("all are counted", func() bool { return total(a.AllDrops()) == before+6 })
	talk(t, a, b)
}

func TestDeviceWorksWithoutIPv6(t *testing.T) {
	a, b := devicetest.NewUDP(t, 1, devicetest.Options{NoIPv6: true}), devicetest.NewUDP(t, 2, devicetest.Options{})
	devicetest.Connect(a, b)
	stranded := newKey(t).Public()
	a.Apply(config.Device{Peers: []config.Peer{{
		PublicKey: stranded, Endpoint: &config.Endpoint{AddrPort: netip.MustParseAddrPort("[::1]:9")},
		AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.0.0.9/32")}},
	}}})
	a.Send(flow.WithVnetHeader(devicetest.Ends(1, 9, 1, false).UDP(nil)))
	a.Await("the initiation over IPv6 has failed", func() bool { return a.Drops(drop.TXSendError) == 1 })
	a.Await("it counts for its peer", func() bool {
		return slices.ContainsFunc(a.Status().Peers, func(p config.PeerStatus) bool { return p.PublicKey == stranded && p.Packets.TxDrops > 0 })
	})
	talk(t, a, b)
	carries(t, a, b, true, 100)
}
