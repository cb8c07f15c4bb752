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

// ErrNoNft is wrapped by the errors of Masquerade and AdmitAnswers where there is no nft(8), or no nftables in the
// kernel.
var ErrNoNft = errors.New("this needs nft(8), and nftables in the kernel")

// nftTimeout bounds one run of nft, which takes milliseconds.
const nftTimeout = 20 * time.Second

// Forward makes the host a router.
func (h *Host) Forward() error {
	err := h.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
	if err != nil {
		return fmt.Errorf("making a router of %s: %w", h.name, explain(err))
	}
	return nil
}

// RouteVia sends what the host has for a network (0.0.0.0/0 for all of IPv4) through a neighbour.
func (h *Host) RouteVia(network netip.Prefix, neighbour netip.Addr) error {
	_, dst, err := net.ParseCIDR(network.String())
	if err == nil {
		err = h.netlink(func(nl *netlink.Handle) error {
			return nl.RouteAdd(&netlink.Route{Dst: dst, Gw: neighbour.AsSlice()})
		})
	}
	if err != nil {
		return fmt.Errorf("routing %s of %s via %s: %w", network, h.name, neighbour, err)
	}
	return nil
}

// Masquerade makes the host a NAT for IPv4 and IPv6: packets forwarded out of a device get that device's address as their
// source, and another port if the original one is taken. Ports gives a range to take ports from at all times, as the
// NATs of providers do; the zero Ports keeps the original one if it can.
func (h *Host) Masquerade(out string, ports NATPorts) error {
	return errors.Join(h.Forward(), h.nft(masqueradeRules(out, ports)))
}

// NATPorts is a range of UDP and TCP ports, both ends included.
type NATPorts struct{ First, Last uint16 }

// AdmitAnswers gives the host a stateful firewall: of what arrives by a device, for the host or to be forwarded, it lets
// in answers to what left, and no more.
func (h *Host) AdmitAnswers(in string) error { return h.nft(answersRules(in)) }

func masqueradeRules(out string, ports NATPorts) string {
	verdicts := []string{"masquerade"}
	if ports != (NATPorts{}) {
		verdicts = []string{
			fmt.Sprintf("meta l4proto { tcp, udp } masquerade to :%d-%d", ports.First, ports.Last), "masquerade",
		}
	}
	return table("rw_lab_nat", "postrouting", "nat", "srcnat", rules(fmt.Sprintf("oifname %q", out), verdicts...))
}

func answersRules(in string) string {
	admit := rules(fmt.Sprintf("iifname %q", in),
		"ct state established,related accept",
		"icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-advert } accept",
		"counter drop")
	return table("rw_lab_input", "input", "filter", "filter", admit) +
		table("rw_lab_forward", "forward", "filter", "filter", admit)
}

// rules are a match with each of the verdicts.
func rules(match string, verdicts ...string) string {
	var b strings.Builder
	for _, v := range verdicts {
		fmt.Fprintf(&b, "    %s %s\n", match, v)
	}
	return b.String()
}

// table is an nftables table with one chain.
func table(name, hook, kind, priority, rules string) string {
	return fmt.Sprintf("table inet %s {\n  chain %s {\n    type %s hook %s priority %s; policy accept;\n%s  }\n}\n",
		name, hook, kind, hook, priority, rules)
}

// nft carries out nftables commands in the host.
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
		err = errors.Join(ErrNoNft, err)
	}
	return fmt.Errorf("setting up nftables in %s: %w: %s", h.name, err, strings.TrimSpace(string(out)))
}
