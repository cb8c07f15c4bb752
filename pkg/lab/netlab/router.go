// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// ErrNoNftables is wrapped by the errors of Masquerade and AcceptRepliesOnly if nft(8) is not installed or the kernel has no
// nftables.
var ErrNoNftables = errors.New("nft(8) is not installed, or the kernel has no nftables")

// nftTimeout bounds one run of nft.
const nftTimeout = 20 * time.Second

// Forward enables IP forwarding, for IPv4 and IPv6.
func (h *Host) Forward() error {
	err := h.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
	if err != nil {
		return fmt.Errorf("enabling IP forwarding in %s: %w", h.name, explain(err))
	}
	return nil
}

// RouteVia adds a route to a network (0.0.0.0/0 for all of IPv4) through a gateway.
func (h *Host) RouteVia(network netip.Prefix, gateway netip.Addr) error {
	err := h.route(network, func(*netlink.Handle) (*netlink.Route, error) {
		return &netlink.Route{Gw: gateway.AsSlice()}, nil
	})
	if err != nil {
		return fmt.Errorf("adding a route to %s via %s in %s: %w", network, gateway, h.name, err)
	}
	return nil
}

// RouteThrough adds a route to a network through a device without a gateway, such as a tunnel.
func (h *Host) RouteThrough(network netip.Prefix, device string) error {
	err := h.route(network, func(nl *netlink.Handle) (*netlink.Route, error) {
		link, err := nl.LinkByName(device)
		if err != nil {
			return nil, err
		}
		return &netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK}, nil
	})
	if err != nil {
		return fmt.Errorf("adding a route to %s through %s in %s: %w", network, device, h.name, err)
	}
	return nil
}

// route adds a route to a network as next describes it.
func (h *Host) route(network netip.Prefix, next func(*netlink.Handle) (*netlink.Route, error)) error {
	_, dst, err := net.ParseCIDR(network.String())
	if err != nil {
		return err
	}
	return h.netlink(func(nl *netlink.Handle) error {
		r, err := next(nl)
		if err != nil {
			return err
		}
		r.Dst = dst
		return nl.RouteAdd(r)
	})
}

// Masquerade enables source NAT for IPv4 and IPv6: packets forwarded out of a device get that device's address as their source.
// With the zero NATPorts they keep their source port unless it is taken. Otherwise they get a port of that range, as behind a
// carrier-grade NAT.
func (h *Host) Masquerade(out string, ports NATPorts) error {
	return errors.Join(h.Forward(), h.nft(masqueradeRules(out, ports)))
}

// NATPorts is a range of UDP and TCP ports, both ends included.
type NATPorts struct{ First, Last uint16 }

// AcceptRepliesOnly adds a stateful firewall for packets that arrive on a device, for the host or
// to be forwarded. It accepts packets of established connections and drops all others.
func (h *Host) AcceptRepliesOnly(in string) error { return h.nft(repliesRules(in)) }

// TrackConnections makes the kernel track the connections that are forwarded. A firewall that AcceptRepliesOnly adds later knows them; without,
// it knows none that began before it.
func (h *Host) TrackConnections() error {
	return h.nft(table("rw_lab_track", "forward", "filter", "filter", "    ct state established,related accept\n"))
}

// AcceptAll removes the firewall of AcceptRepliesOnly.
func (h *Host) AcceptAll() error {
	return h.nft("delete table inet rw_lab_input\ndelete table inet rw_lab_forward\n")
}

func masqueradeRules(out string, ports NATPorts) string {
	verdicts := []string{"masquerade"}
	if ports != (NATPorts{}) {
		verdicts = []string{
			fmt.Sprintf("meta l4proto { tcp, udp } masquerade to :%d-%d", ports.First, ports.Last), "masquerade",
		}
	}
	return table("rw_lab_nat", "postrouting", "nat", "srcnat", rules(fmt.Sprintf("oifname %q", out), verdicts...))
}

func repliesRules(in string) string {
	admit := rules(fmt.Sprintf("iifname %q", in),
		"ct state established,related accept",
		"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept",
		"counter drop")
	return table("rw_lab_input", "input", "filter", "filter", admit) +
		table("rw_lab_forward", "forward", "filter", "filter", admit)
}

// rules returns one rule for each verdict, all with the same match.
func rules(match string, verdicts ...string) string {
	var b strings.Builder
	for _, v := range verdicts {
		fmt.Fprintf(&b, "    %s %s\n", match, v)
	}
	return b.String()
}

// table returns an nftables table with one chain.
func table(name, hook, kind, priority, rules string) string {
	return fmt.Sprintf("table inet %s {\n  chain %s {\n    type %s hook %s priority %s; policy accept;\n%s  }\n}\n",
		name, hook, kind, hook, priority, rules)
}

// nft runs nftables commands in the host.
func (h *Host) nft(script string) error {
	ctx, cancel := context.WithTimeout(context.Background(), nftTimeout)
	defer cancel()
	cmd := h.Command(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound), strings.Contains(string(out), "not supported"):
		err = errors.Join(ErrNoNftables, err)
	}
	return fmt.Errorf("running nft in %s: %w: %s", h.name, err, strings.TrimSpace(string(out)))
}
