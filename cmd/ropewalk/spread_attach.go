// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// spreadAttachOptions are the flags of `ropewalk spread attach` that need a look before they are a Config.
type spreadAttachOptions struct {
	peers     []string
	ports     string
	peerPorts string
	gather    string
	mark      string
	watch     bool
	metrics   spreadMetrics
	cfg       adopt.Config
}

func newSpreadAttachCmd() *cobra.Command {
	var o spreadAttachOptions
	cmd := &cobra.Command{
		Use:   "attach DEVICE --port PORT",
		Short: "Spread a tunnel's packets on the device that they leave through, and gather its peers'",
		Long: "attach gives the data messages of the tunnel that listens on PORT source ports by inner flow, as they leave through\n" +
			"DEVICE, and undoes on the way in what the peers did. It goes on when the command ends; the next attach changes it\n" +
			"in place, without losing a packet. Attach again when peers move or the device was away, or let --watch do it.\n\n" +
			"Gathering is at tc ingress, which turns no offload off. --gather xdp costs less per packet, but attaching XDP to a\n" +
			"veth turns TSO and UDP GSO of its other end off, and on virtio_net the guest's receive offloads.\n\n" +
			"--gather and --gap are of the device: they hold for all tunnels on it, and stay as they are when not given.",
		Example: "  ropewalk spread attach eth0 --port 51820\n" +
			"  ropewalk spread attach eth0 --port 51820 --peer 192.0.2.7 --peer '[2001:db8::7]:51821' --lanes 16\n" +
			"  ropewalk spread attach eth0 --port 51820 --ports 61003,61017,61040   # as the receiver's spread plan says\n" +
			"  ropewalk spread attach eth0 --port 51820 --watch                     # under systemd\n" +
			"  ropewalk spread attach eth0 --port 51820 --watch --metrics 127.0.0.1:9821",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE:              func(cmd *cobra.Command, args []string) error { return printing(spreadAttach(cmd, args[0], o)) },
	}
	f := cmd.Flags()
	f.Uint16Var(&o.cfg.Port, "port", 0, "the tunnel's listen port")
	f.StringArrayVar(&o.peers, "peer", nil, "a peer's ADDRESS[:PORT], its listen port being PORT or that of --port\n"+
		"(repeatable; default: the peers that the tunnel knows)")
	f.IntVar(&o.cfg.Lanes, "lanes", 0, fmt.Sprintf("ports to spread over (default: all, at most %d)", spread.MaxPorts))
	f.StringVar(&o.ports, "ports", spread.DefaultPorts.String(), "range FIRST-LAST to take them from, or a plan PORT,PORT,...")
	f.StringVar(&o.peerPorts, "peer-ports", "", "range that the peers spread over (default: that of --ports)")
	f.StringVar(&o.gather, "gather", "", "auto, tc, xdp or none (default: as the device has it, at first auto)")
	completeFlag(cmd, "gather", "auto", "tc", "xdp", "none")
	f.StringVar(&o.mark, "mark", "", "mask of the mark's bits that hold the flow, for a userspace WireGuard that sets them")
	f.DurationVar(&o.cfg.Gap, "gap", 0,
		fmt.Sprintf("silence after which a flow may take another port\n(default: as the device has it, at first %s)", spread.DefaultGap))
	f.BoolVar(&o.watch, "watch", false, "stay in the foreground and keep it so: devices that return, peers that move")
	o.metrics.add(f)
	return cmd
}

func spreadAttach(cmd *cobra.Command, device string, o spreadAttachOptions) error {
	cfg, err := o.config(device)
	if err == nil && cfg.Gap == 0 && cmd.Flags().Changed("gap") {
		err = errors.New("--gap 0: want 1ms to 1m")
	}
	if err == nil {
		err = o.metrics.check(o.watch)
	}
	if err != nil {
		return usageError{err}
	}
	out, errs := cmd.OutOrStdout(), cmd.ErrOrStderr()
	host := new(adopt.Host)
	if o.watch {
		log, err := newLogger(errs, knownLevel(os.Getenv("LOG_LEVEL")))
		if err != nil {
			return err
		}
		return o.metrics.during(cmd.Context(), log, func() error {
			return spreadUsage(host.Watch(cmd.Context(), cfg, log, func(r adopt.Report) { printSpreadReport(out, errs, r) }))
		})
	}
	report, err := host.Attach(cmd.Context(), cfg)
	if err != nil {
		return spreadUsage(err)
	}
	printSpreadReport(out, errs, report)
	return nil
}

// spreadUsage makes a request that can be right on no host a usage error.
func spreadUsage(err error) error {
	if errors.Is(err, adopt.ErrInvalid) {
		return usageError{err}
	}
	return err
}

func (o spreadAttachOptions) config(device string) (cfg adopt.Config, err error) {
	cfg = o.cfg
	cfg.Device, cfg.Gather = device, adopt.Gather(o.gather)
	for _, s := range o.peers {
		p, err := parseSpreadPeer(s)
		if err != nil {
			return cfg, fmt.Errorf("--peer: %w", err)
		}
		cfg.Peers = append(cfg.Peers, p)
	}
	if cfg.Ports, cfg.Plan, err = parseSpreadPorts(o.ports); err != nil {
		return cfg, fmt.Errorf("--ports %q: %w", o.ports, err)
	}
	if o.peerPorts != "" {
		if cfg.PeerPorts, err = config.ParsePorts(o.peerPorts); err != nil {
			return cfg, fmt.Errorf("--peer-ports %q: %w", o.peerPorts, err)
		}
	}
	if o.mark != "" {
		mark, err := strconv.ParseUint(o.mark, 0, 32)
		if err != nil || mark == 0 {
			return cfg, fmt.Errorf("--mark %q: want a mask, such as 0xff000000", o.mark)
		}
		cfg.Mark = uint32(mark)
	}
	return cfg, nil
}

// parseSpreadPeer reads an address with or without a port, which is then 0.
func parseSpreadPeer(s string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return netip.AddrPortFrom(a, 0), nil
	}
	p, err := netip.ParseAddrPort(s)
	if err != nil || p.Port() == 0 {
		return p, fmt.Errorf("%q: want an IP address, or ADDRESS:PORT (an IPv6 one in brackets)", s)
	}
	return p, nil
}

// parseSpreadPorts reads a range or a list.
func parseSpreadPorts(s string) (spread.Ports, []uint16, error) {
	if strings.Contains(s, "-") {
		r, err := config.ParsePorts(s)
		return r, nil, err
	}
	var list []uint16
	for item := range strings.SplitSeq(s, ",") {
		port, err := strconv.ParseUint(strings.TrimSpace(item), 10, 16)
		if err != nil || port == 0 {
			return spread.Ports{}, nil, errors.New("want FIRST-LAST or PORT,PORT,...")
		}
		list = append(list, uint16(port))
	}
	return spread.Ports{}, list, nil
}

func printSpreadReport(out, errs io.Writer, r adopt.Report) {
	fmt.Fprintf(out, "%s: %s (UDP port %d) spreads over %s towards %s; spread by %s, gather by %s\n", printable(r.Device), printable(r.Tunnel), r.Port,
		countOf(len(r.Lanes), "port"), countOf(len(r.Peers), "peer"), r.Spread, r.Gather)
	for _, s := range r.Skipped {
		fmt.Fprintf(errs, "ropewalk: peer %s is left alone: %s\n", s.Key, printable(s.Why))
	}
	for _, w := range r.Warnings {
		fmt.Fprintf(errs, "ropewalk: warning: %s\n", printable(w))
	}
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
