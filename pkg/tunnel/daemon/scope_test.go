// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestEndpointFollowsRecreatedLink covers a daemon and its successor.
func TestEndpointFollowsRecreatedLink(t *testing.T) {
	name := enterForDaemons(t)
	predecessor := launch(t, name)
	addLink(t, "uplink")
	ep, err := uapi.NewEndpoint(netip.MustParseAddrPort("[fe80::2%uplink]:51820"))
	expect.NoError(t, err)
	client, err := uapi.Dial(name)
	expect.NoError(t, err)
	expect.NoError(t, client.Configure(config.Device{Peers: []config.Peer{{PublicKey: noise.PublicKey{1}, Endpoint: &ep}}}))
	expect.NoError(t, client.Close())
	follows := func() {
		t.Helper()
		l, err := netlink.LinkByName("uplink")
		expect.NoError(t, err)
		expect.NoError(t, netlink.LinkDel(l))
		index := addLink(t, "uplink")
		expect.Eventually(t, "the endpoint is on the new link", func() bool {
			return (&party{name: name}).status(t).Peers[0].Endpoint.Scope == uint32(index)
		})
	}
	follows()
	follows()
	launch(t, name, takeoverEnv+"=1")
	expect.NoError(t, predecessor.Wait())
	(&party{name: name}).status(t) // the successor answers when it watches links
	follows()
}
