// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/lab/bench"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// benchPort is where `ropewalk bench peer` listens.
const benchPort = 51821

// benchUnderlayOptions are the flags of `ropewalk bench underlay`.
type benchUnderlayOptions struct {
	to, key, loop string
	seconds       float64
	rounds        int
	dir           string // of the result
	self          []string
	prefix        string
	command       string
	anyLoad       bool // measure on a busy machine
}

func newBenchUnderlayCmd() *cobra.Command {
	o := benchUnderlayOptions{self: []string{"/proc/self/exe"}}
	cmd := &cobra.Command{
		Use:   "underlay DEVICE",
		Short: "Compare UDP sockets and AF_XDP on a network device, for Underlay = auto",
		Long: "underlay runs a tunnel over DEVICE by UDP sockets and by AF_XDP in turn. It saves throughput and CPU time per packet\n" +
			"of single datagrams and trains. Underlay = auto uses AF_XDP on DEVICE while the result says that it is better, and\n" +
			"driver, firmware, kernel and receive queues stay as they are. Run it on an idle machine.\n\n" +
			"With --to the other end is a host that runs `ropewalk bench peer` with the same key. With --loop it is another\n" +
			"port of this host, connected to DEVICE by a cable. Both ports must be without addresses, routes and VLANs: they are\n" +
			"moved into network namespaces meanwhile, and back afterwards, also after an interrupt. An XDP program is attached to\n" +
			"DEVICE: some drivers lose the link for seconds when that happens.",
		Example: "  sudo ropewalk bench peer --key bench.key   # on the other host, with a copy of the key from `ropewalk genpsk`\n" +
			"  sudo ropewalk bench underlay eth0 --to 192.0.2.2 --key bench.key\n" +
			"  sudo ropewalk bench underlay eth0 --loop eth1",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeDevice,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.command = strings.Join(append([]string{"ropewalk bench underlay"}, os.Args[min(3, len(os.Args)):]...), " ")
			return benchUnderlay(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0], o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.to, "to", "", "`HOST[:PORT]` that runs `ropewalk bench peer`")
	f.StringVar(&o.key, "key", "", "`file` with the key that both hosts share, from `ropewalk genpsk`")
	f.StringVar(&o.loop, "loop", "", "`device` at the other end of a cable from DEVICE")
	f.Float64Var(&o.seconds, "seconds", benchSeconds, "duration of each stretch of traffic in seconds")
	f.IntVar(&o.rounds, "rounds", 4, "rounds, of which the medians count")
	f.StringVar(&o.dir, "dir", measurement.DefaultDir, "directory for the result; daemons read the default")
	f.BoolVar(&o.anyLoad, "any-load", false, "measure on a busy machine as well")
	_ = cmd.RegisterFlagCompletionFunc("loop", func(cmd *cobra.Command, _ []string, prefix string) ([]string, cobra.ShellCompDirective) {
		return completeDevice(cmd, nil, prefix)
	})
	return cmd
}

func newBenchPeerCmd() *cobra.Command {
	self, prefix := []string{"/proc/self/exe"}, ""
	var key string
	var port uint16
	cmd := &cobra.Command{
		Use:   "peer",
		Short: "Be the other host for `ropewalk bench underlay --to`",
		Long: "peer runs the other end of the tunnel that `ropewalk bench underlay --to` measures, until it is interrupted.\n" +
			"The tunnel's traffic stays in a network namespace of its own. Only a host with the key can use it.",
		Example: "  sudo ropewalk bench peer --key bench.key",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return benchPeer(cmd.Context(), cmd.OutOrStdout(), key, port, self, prefix)
		},
	}
	cmd.Flags().StringVar(&key, "key", "", "`file` with the key that both hosts share, from `ropewalk genpsk`")
	cmd.Flags().Uint16Var(&port, "port", benchPort, "UDP port to listen on")
	return cmd
}

// benchEnd returns the configuration of an end whose daemon uses an underlay device, or any with "".
func benchEnd(self []string, prefix, keyFile, device string) (testbed.EndConfig, error) {
	c := testbed.EndConfig{Daemon: benchDaemon(self, device), Traffic: slices.Concat(self, []string{"traffic"}), Prefix: prefix}
	if keyFile == "" {
		return c, usageError{errors.New("--key is missing: want the file with the key that both hosts share")}
	}
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return c, fmt.Errorf("reading --key: %w", err)
	}
	if c.Secret, err = noise.ParseBase64[noise.PresharedKey](strings.TrimSpace(string(text))); err != nil {
		return c, fmt.Errorf("reading --key %s: %w", keyFile, err)
	}
	return c, nil
}

func benchDaemon(self []string, device string) testbed.Daemon {
	argv := slices.Concat(self, []string{"run", "--log-level", "error", "--underlay", "udp"})
	if device != "" {
		argv = append(argv, "--underlay-device", device)
	}
	return testbed.Command(argv...)
}

// benchPeer runs the far end until ctx is done.
func benchPeer(ctx context.Context, out io.Writer, key string, port uint16, self []string, prefix string) error {
	c, err := benchEnd(self, prefix, key, "")
	if err != nil {
		return err
	}
	c.Far = netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	e, err := testbed.StartEnd(ctx, c)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "listening on UDP port %d for `ropewalk bench underlay --to`\n", port)
	return errors.Join(e.Serve(ctx), e.Close())
}

// benchUnderlay measures a device, prints the comparison and saves it.
func benchUnderlay(ctx context.Context, out, progress io.Writer, device string, o benchUnderlayOptions) error {
	stretch, err := secondsFlag(o.seconds)
	switch {
	case err != nil:
		return usageError{err}
	case (o.to == "") == (o.loop == "") || o.loop == device:
		return usageError{errors.New("want either --to HOST, or --loop with another device")}
	case o.rounds < 1:
		return usageError{fmt.Errorf("--rounds %d: want at least 1", o.rounds)}
	}
	conditions, err := measurement.ReadConditions(device)
	if err != nil {
		return err
	}
	if !o.anyLoad {
		if err := bench.CheckIdle(ctx); err != nil {
			return err
		}
	}
	tunnel, err := o.open(ctx, device)
	if err != nil {
		return err
	}
	live := &benchProgress{out: progress, tty: isTerminal(progress)}
	r, err := bench.CompareUnderlays(ctx, tunnel, bench.UnderlayConfig{Stretch: stretch, Rounds: o.rounds, Progress: live.show})
	live.clear()
	if err = errors.Join(err, tunnel.Close()); err != nil {
		return fmt.Errorf("comparing the underlays of %s: %w", device, err)
	}
	r.Device, r.Conditions, r.Time, r.Version, r.Command = device, conditions, time.Now().UTC().Truncate(time.Second), version, o.command
	if err := measurement.Save(o.dir, &r); err != nil {
		return err
	}
	if err := bench.WriteUnderlayTable(out, &r); err != nil {
		return err
	}
	fmt.Fprintf(out, "Saved in %s. Tunnels that run: ropewalk set INTERFACE underlay auto\n", measurement.Path(o.dir, device))
	return nil
}

// benchTunnel is a tunnel to measure.
type benchTunnel interface {
	bench.Tunnel
	Close() error
}

// open starts a tunnel over the device.
func (o *benchUnderlayOptions) open(ctx context.Context, device string) (benchTunnel, error) {
	if o.loop != "" {
		return testbed.New(ctx, testbed.Config{
			Ports: [2]string{device, o.loop}, Daemon: benchDaemon(o.self, ""), Traffic: slices.Concat(o.self, []string{"traffic"}), Prefix: o.prefix,
		})
	}
	c, err := benchEnd(o.self, o.prefix, o.key, device)
	if err != nil {
		return nil, err
	}
	if c.Far, err = benchHost(ctx, o.to); err != nil {
		return nil, fmt.Errorf("--to %s: %w", o.to, err)
	}
	if l, err := hostnet.EgressDevice(c.Far.Addr(), 0, 0); err != nil || l.Name != device {
		return nil, errors.Join(err, fmt.Errorf("--to %s: packets to it do not leave by %s, but by %s", o.to, device, l.Name))
	}
	return testbed.StartEnd(ctx, c)
}

// benchHost resolves HOST or HOST:PORT.
func benchHost(ctx context.Context, text string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), strconv.Itoa(benchPort)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addrs, err := hostnet.LookUpHost(ctx, host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(addrs[0].WithZone(""), uint16(n)), nil
}
