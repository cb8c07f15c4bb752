// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestLocalPodsBypassTunnel has the routes of plugins whose pods are outside of Node.spec.podCIDRs, with podCIDRs of the RopewalkMesh around them.
func TestLocalPodsBypassTunnel(t *testing.T) {
	inNamespace(t, func() error {
		add := func(device, dst, gateway string, flags int) error {
			l, err := netlink.LinkByName(device)
			if err != nil {
				return err
			}
			_, prefix, err := net.ParseCIDR(dst)
			r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: prefix, Gw: net.ParseIP(gateway), Flags: flags}
			if gateway == "" {
				r.Scope = netlink.SCOPE_LINK
			}
			if err = errors.Join(err, netlink.RouteAdd(r)); err != nil {
				return fmt.Errorf("%s dev %s: %w", dst, device, err)
			}
			return nil
		}
		bridge := func(name, port string) error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			b := &netlink.Bridge{LinkAttrs: attrs}
			l, err := netlink.LinkByName(port)
			return errors.Join(err, netlink.LinkAdd(b), netlink.LinkSetMaster(l, b), netlink.LinkSetUp(b))
		}
		dummy := netlink.NewLinkAttrs()
		dummy.Name = "overlay"
		err := errors.Join(
			addLink("eth9", "192.0.2.1/24"), addLink("tunnel", "10.0.0.1/32"), addLink("cali1", "169.254.1.1/32"),
			addLink("cilium_host", "10.7.0.5/32"), addLink("pod1", "169.254.1.2/32"),
			netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: dummy, VxlanId: 7, Port: 8472}),
		)
		if err != nil {
			return err
		}
		overlay, err := netlink.LinkByName("overlay")
		if err != nil {
			return err
		}
		err = errors.Join(
			netlink.LinkSetUp(overlay), bridge("cni0", "pod1"), bridge("br-ex", "overlay"),
			add("eth9", "0.0.0.0/0", "192.0.2.2", 0),
			add("eth9", "10.3.0.0/16", "", 0), // on the link of the default route: other nodes
			add("cali1", "10.244.77.5/32", "", 0),
			add("cilium_host", "10.7.0.5/32", "", 0),
			add("cilium_host", "10.7.0.0/24", "10.7.0.5", 0),
			add("cilium_host", "10.7.1.0/24", "10.7.0.5", 0), // another node's, in an overlay
			add("cali1", "10.244.78.0/24", "192.0.2.9", int(netlink.FLAG_ONLINK)),
			add("cni0", "10.8.0.0/24", "", 0),
			add("br-ex", "10.9.0.0/24", "", 0),
			add("cali1", "198.51.100.5/32", "", 0),
		)
		if err != nil {
			return err
		}
		r := &Routing{Routes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		for _, changed := range []bool{true, false} {
			if n, err := (System{}).SetRoutes("tunnel", r); err != nil || (n > 0) != changed {
				t.Errorf("got %d changes, error %v, want changes %v", n, err, changed)
			}
		}
		wantRoutes(t, "with local pods", map[string]string{
			"10.244.77.5": "cali1", "10.244.77.6": "tunnel", "10.7.0.9": "cilium_host", "10.7.1.9": "tunnel", "10.244.78.9": "tunnel",
			"10.8.0.9": "cni0", "10.9.0.9": "tunnel", "10.3.0.9": "tunnel", "198.51.100.5": "cali1", "198.51.100.6": "eth9",
		})
		have, err := agentRoutes(routeTable)
		if _, exempt := have[routeKey{netip.MustParsePrefix("10.8.0.0/24"), unix.RTN_THROW}]; err != nil || len(have) != 6 || !exempt {
			t.Errorf("got routes %v, error %v", have, err)
		}
		pod, err := netlink.LinkByName("cali1")
		if err = errors.Join(err, netlink.LinkDel(pod)); err != nil {
			return err
		}
		if n, err := (System{}).SetRoutes("tunnel", r); err != nil || n != 1 {
			t.Errorf("after the pod is gone: %d changes, %v", n, err)
		}
		wantRoutes(t, "after the pod is gone", map[string]string{"10.244.77.5": "tunnel"})
		return nil
	})
}
