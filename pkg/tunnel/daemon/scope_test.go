// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestEndpointFollowsRecreatedLink covers a daemon and its successor, and a link that is absent during the upgrade.
func TestEndpointFollowsRecreatedLink(t *testing.T) {
	name := enterForDaemons(t)
	predecessor := launch(t, name)
	for i, link := range []string{"uplink", "other"} {
		addLink(t, link)
		ep, err := uapi.NewEndpoint(netip.MustParseAddrPort("[fe80::2%" + link + "]:51820"))
		expect.NoError(t, err)
		client, err := uapi.Dial(name)
		expect.NoError(t, err)
		expect.NoError(t, client.Configure(config.Device{Peers: []config.Peer{{PublicKey: noise.PublicKey{byte(1 + i)}, Endpoint: &ep}}}))
		expect.NoError(t, client.Close())
	}
	remove := func(link string) {
		t.Helper()
		l, err := netlink.LinkByName(link)
		expect.NoError(t, err)
		expect.NoError(t, netlink.LinkDel(l))
	}
	follows := func(link string) {
		t.Helper()
		index := addLink(t, link)
		expect.Eventually(t, "an endpoint is on the new link "+link, func() bool {
			return slices.ContainsFunc((&party{name: name}).status(t).Peers, func(p config.PeerStatus) bool { return p.Endpoint.Scope == uint32(index) })
		})
	}
	for range 2 {
		remove("uplink")
		follows("uplink")
	}
	remove("uplink")
	remove("other")
	follows("other") // so the predecessor has noticed both
	launch(t, name, takeoverEnv+"=1")
	expect.NoError(t, predecessor.Wait())
	(&party{name: name}).status(t) // the successor answers when it watches links
	follows("uplink")
	remove("uplink")
	follows("uplink")
}
