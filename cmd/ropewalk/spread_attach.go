// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// spreadAttachOptions are the flags of `ropewalk spread attach`.
type spreadAttachOptions struct {
	peers     []string
	ports     string
	peerPorts string
	gather    string
	watch     bool
	metrics   metricsFlags
	cfg       spreader.Config
}

func newSpreadAttachCmd() *cobra.Command {
	var o spreadAttachOptions
	cmd := &cobra.Command{
		Use:   "attach DEVICE --port PORT",
		Short: "Attach spreading and gathering for a tunnel to a device",
		Long: "attach attaches BPF programs to DEVICE, and to all other devices by which peers may send, that spread and gather a\n" +
			"tunnel's packets. They give the data messages of the tunnel on port PORT a source port for each inner flow, and\n" +
			"restore the source port of its peers' messages. The programs stay attached when the command ends; another attach\n" +
			"updates them in place, without losing a packet. Attach again after a peer's endpoint has changed or the device was\n" +
			"recreated, or use --watch.\n\n" +
			"The gather program runs at tc ingress, where it disables no offload. --gather xdp costs less per packet. But XDP on a\n" +
			"veth disables TSO and UDP GSO of the other end, and XDP on virtio_net the guest's receive offloads.\n\n" +
			"--gather and --gap apply to all tunnels on the device. Without these flags the device keeps its settings.",
		Example: "  ropewalk spread attach eth0 --port 51820\n" +
			"  ropewalk spread attach eth0 --port 51820 --peer 192.0.2.7 --peer '[2001:db8::7]:51821' --lanes 16\n" +
			"  ropewalk spread attach eth0 --port 51820 --ports 61003,61017,61040   # from the receiver's spread plan\n" +
			"  ropewalk spread attach eth0 --port 51820 --watch                     # under systemd\n" +
			"  ropewalk spread attach eth0 --port 51820 --watch --metrics 127.0.0.1:9821",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE:              func(cmd *cobra.Command, args []string) error { return printing(spreadAttach(cmd, args[0], o)) },
	}
	f := cmd.Flags()
	f.Uint16Var(&o.cfg.Port, "port", 0, "listen port of the tunnel")
	f.StringArrayVar(&o.peers, "peer", nil, "address of a peer, ADDRESS[:PORT]; PORT is its listen port (default: --port)\n"+
		"(repeatable; default: the tunnel's peers)")
	f.IntVar(&o.cfg.Lanes, "lanes", 0, fmt.Sprintf("number of ports to spread over (default: all, at most %d)", spread.MaxPorts))
	f.StringVar(&o.ports, "ports", spread.DefaultPorts.String(), "source ports: a range FIRST-LAST, or a plan PORT,PORT[,PORT]")
	f.StringVar(&o.peerPorts, "peer-ports", "", "range of the peers' source ports (default: --ports)")
	f.StringVar(&o.gather, "gather", "", "gather program: auto, tc or xdp (default: the device's setting, at first auto)")
	completeFlag(cmd, "gather", "auto", "tc", "xdp")
	f.BoolVar(&o.cfg.AnySocket, "any-socket", false, "for tests: the port may belong to a process, whose sockets stand in for the kernel's WireGuard")
	_ = f.MarkHidden("any-socket")
	f.DurationVar(&o.cfg.Gap, "gap", 0,
		fmt.Sprintf("idle time after which a flow may change its port\n(default: the device's setting, at first %s)", spread.DefaultGap))
	f.BoolVar(&o.watch, "watch", false, "stay in the foreground and follow changes of devices and peers")
	f.BoolVar(&o.cfg.RestartStalledPeers, "restart-stalled-peers", false, "with --watch: remove and add again a peer from which WireGuard receives only handshakes,\n"+
		"at most once in ten minutes")
	f.StringVar(&o.metrics.addr, "metrics", "", "with --watch: serve Prometheus metrics at `host:port` (default: off)")
	f.StringVar(&o.metrics.config, "metrics-config", "", "`file` for TLS and basic authentication of --metrics (Prometheus' web config)")
	return cmd
}

func spreadAttach(cmd *cobra.Command, device string, o spreadAttachOptions) error {
	cfg, err := o.config(device)
	switch {
	case err != nil:
	case cfg.Gap == 0 && cmd.Flags().Changed("gap"):
		err = errors.New("--gap 0: want 1ms to 1m")
	case o.metrics.addr != "" && !o.watch:
		err = errors.New("--metrics needs --watch: metrics are served while the command runs")
	case o.metrics.config != "" && o.metrics.addr == "":
		err = errors.New("--metrics-config needs an address: add --metrics HOST:PORT")
	case cfg.RestartStalledPeers && !o.watch:
		err = errors.New("--restart-stalled-peers needs --watch: peers are watched while the command runs")
	}
	if err != nil {
		return usageError{err}
	}
	out, errs := cmd.OutOrStdout(), cmd.ErrOrStderr()
	host := new(spreader.Host)
	if o.watch {
		log, err := newLogger(errs, knownLevel(os.Getenv("LOG_LEVEL")))
		if err != nil {
			return err
		}
		return o.metrics.duringSpread(cmd.Context(), log, func() error {
			printer := spreadPrinter{out: out, errs: errs, limit: rate.NewLimiter(rate.Every(reportInterval), reportBurst)}
			return spreadUsage(host.Watch(cmd.Context(), cfg, log, printer.print))
		})
	}
	report, err := host.Attach(cmd.Context(), cfg)
	if err != nil {
		return spreadUsage(err)
	}
	(&spreadPrinter{out: out, errs: errs}).print(report)
	return nil
}

// spreadUsage turns an error that does not depend on the host into a usage error.
func spreadUsage(err error) error {
	if errors.Is(err, spreader.ErrInvalid) {
		return usageError{err}
	}
	return err
}

// config returns the flags as a Config.
func (o spreadAttachOptions) config(device string) (cfg spreader.Config, err error) {
	cfg = o.cfg
	cfg.Device, cfg.Gather = device, spreader.Gather(o.gather)
	for _, s := range o.peers {
		p, err := parseSpreadPeer(s)
		if err != nil {
			return cfg, fmt.Errorf("--peer: %w", err)
		}
		cfg.Peers = append(cfg.Peers, p)
	}
	if cfg.Ports, cfg.PortPlan, err = parseSpreadPorts(o.ports); err != nil {
		return cfg, fmt.Errorf("--ports %q: %w", o.ports, err)
	}
	if o.peerPorts != "" {
		if cfg.PeerPorts, err = config.ParsePorts(o.peerPorts); err != nil {
			return cfg, fmt.Errorf("--peer-ports %q: %w", o.peerPorts, err)
		}
	}
	return cfg, nil
}

// parseSpreadPeer parses ADDRESS or ADDRESS:PORT. Without a port, the port of the result is 0.
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

// parseSpreadPorts parses a range or a list of ports.
func parseSpreadPorts(s string) (spread.Ports, []uint16, error) {
	if strings.Contains(s, "-") {
		r, err := config.ParsePorts(s)
		return r, nil, err
	}
	var list []uint16
	for item := range strings.SplitSeq(s, ",") {
		port, err := strconv.ParseUint(strings.TrimSpace(item), 10, 16)
		if err != nil || port == 0 {
			return spread.Ports{}, nil, errors.New("want FIRST-LAST or PORT,PORT[,PORT]")
		}
		list = append(list, uint16(port))
	}
	return spread.Ports{}, list, nil
}
