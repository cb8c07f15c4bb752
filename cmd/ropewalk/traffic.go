// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

const trafficPort = "5210"

func newTrafficCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "traffic",
		Short:  "Generate and verify test traffic",
		Long:   "traffic sends a known pattern over TCP or UDP, and reports received, lost, reordered and corrupt data.",
		Hidden: true,
	}
	cmd.AddCommand(newTrafficServerCmd(), newTrafficClientCmd())
	return cmd
}

func newTrafficServerCmd() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:     "server",
		Short:   "Receive test traffic until stopped",
		Long:    "server receives and checks test traffic until it is stopped.",
		Example: "  ropewalk traffic server --listen 10.77.0.2:" + trafficPort,
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			addr, err := netip.ParseAddrPort(listen)
			if err != nil {
				return usageError{fmt.Errorf("--listen: %w", err)}
			}
			s, err := traffic.Listen(traffic.ServerConfig{Addr: addr})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "listening on %s\n", s.Addr())
			return s.Serve(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "[::]:"+trafficPort, "address and port to listen on")
	return cmd
}

// trafficOptions are the flags of `ropewalk traffic client`.
type trafficOptions struct {
	kind    string
	seconds float64
	warmup  float64
	rate    string
	json    bool
	cfg     traffic.Config
}

func newTrafficClientCmd() *cobra.Command {
	var o trafficOptions
	cmd := &cobra.Command{
		Use:     "client ADDRESS:PORT",
		Short:   "Send test traffic to a server",
		Long:    "client sends test traffic to a server and prints its rate, losses and latency.",
		Example: "  ropewalk traffic client --kind udp --streams 8 --train 40 --rate 2G 10.77.0.2:" + trafficPort,
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTrafficClient(cmd, o, args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.kind, "kind", "tcp", "tcp, udp or ping")
	f.IntVar(&o.cfg.Streams, "streams", 1, "parallel streams")
	f.Float64Var(&o.seconds, "seconds", 5, "duration of the transfer in seconds")
	f.Float64Var(&o.warmup, "warmup", 0, "seconds at the beginning of a TCP transfer that do not count towards its rate")
	f.StringVar(&o.cfg.Congestion, "congestion", "", "TCP congestion control, such as cubic or bbr (default the system's)")
	f.IntVar(&o.cfg.Size, "size", traffic.DefaultSize, "UDP payload in bytes")
	f.IntVar(&o.cfg.Train, "train", 1, "UDP datagrams per send (UDP_SEGMENT)")
	f.StringVar(&o.rate, "rate", "0", "payload bits per second over all streams, with k, M or G; 0 is unlimited")
	f.BoolVar(&o.json, "json", false, "print the result as JSON")
	return cmd
}

func runTrafficClient(cmd *cobra.Command, o trafficOptions, server string) (err error) {
	cfg := o.cfg
	cfg.Kind = traffic.Kind(o.kind)
	if cfg.Server, err = netip.ParseAddrPort(server); err != nil {
		return usageError{err}
	}
	if cfg.Duration, err = secondsFlag(o.seconds); err != nil {
		return usageError{err}
	}
	cfg.Warmup = time.Duration(o.warmup * float64(time.Second))
	if cfg.BitsPerSecond, err = parseRate(o.rate); err != nil {
		return usageError{fmt.Errorf("--rate: %w", err)}
	}
	res, err := traffic.Run(cmd.Context(), cfg)
	if err != nil {
		return err
	}
	if o.json {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(res)
	}
	fmt.Fprintln(cmd.OutOrStdout(), trafficLine(res))
	return nil
}

// trafficLine returns a Result in one line.
func trafficLine(r traffic.Result) string {
	switch {
	case r.Kind == traffic.Ping && r.Latency == nil:
		return fmt.Sprintf("ping: no reply to %d packets", r.SentPackets)
	case r.Kind == traffic.Ping:
		return fmt.Sprintf("ping: %d replies to %d packets, p50 %s, p99 %s, max %s",
			r.Packets, r.SentPackets, r.Latency.P50, r.Latency.P99, r.Latency.Max)
	case r.Kind == traffic.TCP:
		return fmt.Sprintf("tcp: %s, %d corrupt", term.BitRate(r.BitsPerSecond), r.Corrupt)
	}
	return fmt.Sprintf("udp: %s, %s, %d lost, %d reordered, %d duplicated, %d corrupt", term.BitRate(r.BitsPerSecond),
		term.PacketRate(r.PacketsPerSecond), r.LostPackets, r.Reordered, r.Duplicated, r.Corrupt)
}

// parseRate parses bits per second with an optional suffix k, M or G.
func parseRate(s string) (float64, error) {
	unit := 1.0
	for suffix, factor := range map[string]float64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, unit = rest, factor
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 0 && n*unit <= 1e15) {
		return 0, fmt.Errorf("%q is not a number of bits per second", s)
	}
	return n * unit, nil
}

// secondsFlag returns the duration of --seconds, which is limited to a day.
func secondsFlag(s float64) (time.Duration, error) {
	if !(s > 0 && s <= 86400) {
		return 0, fmt.Errorf("--seconds %v: want more than 0 and at most 86400", s)
	}
	return time.Duration(s * float64(time.Second)), nil
}
