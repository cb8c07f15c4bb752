// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/netlab"
	"github.com/ropewalk/ropewalk/pkg/traffic"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// demoOptions are the flags of `ropewalk demo`.
type demoOptions struct {
	seconds float64
	streams int
	queues  int
	json    bool
	daemon  string
}

const (
	demoMaxQueues = 64
	// demoTrain is how many datagrams the UDP streams hand to the tunnel at once.
	demoTrain = 32
	// demoUDPShare is the UDP load as a share of what TCP reached: enough to be busy, not enough to drown.
	demoUDPShare = 0.5
	demoUDPLeast = 1e6
	demoPing     = 300 * time.Millisecond
	demoConnect  = 15 * time.Second
	demoSpread   = 15 * time.Second
)

func newDemoCmd() *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run two tunnel ends in network namespaces and show what they do",
		Long: "demo makes two hosts out of network namespaces, lays a multi-queue cable between them, starts ropewalk in both,\n" +
			"sends verified TCP and UDP traffic through the tunnel, without and with spreading it over source ports, and\n" +
			"captures on the cable to check that all of it is encrypted. It ends with a picture of what each receive queue\n" +
			"got. It needs root and nothing else, touches no existing interface, and removes all it made. The exit code is 0\n" +
			"only if traffic flowed, was encrypted, arrived whole and in order, and spread over the queues.",
		Example: "  sudo ropewalk demo\n  sudo ropewalk demo --seconds 20 --streams 16 --json",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demoMain(cmd.Context(), cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	f.Float64Var(&o.seconds, "seconds", 8, "seconds of traffic: half TCP, half UDP; half without and half with spreading")
	f.IntVar(&o.streams, "streams", 8, "parallel streams, each a flow of its own")
	f.IntVar(&o.queues, "queues", 8, "queues of the cable")
	f.BoolVar(&o.json, "json", false, "print the report as JSON, and nothing else")
	f.StringVar(&o.daemon, "daemon", "/proc/self/exe run", "command that serves an interface, given as its last argument")
	_ = f.MarkHidden("daemon")
	return cmd
}

func (o demoOptions) check() error {
	if _, err := secondsFlag(o.seconds); err != nil {
		return err
	}
	if o.streams < 1 || o.streams > traffic.MaxStreams {
		return fmt.Errorf("--streams %d: want 1 to %d", o.streams, traffic.MaxStreams)
	}
	if o.queues < 1 || o.queues > demoMaxQueues {
		return fmt.Errorf("--queues %d: want 1 to %d", o.queues, demoMaxQueues)
	}
	if len(strings.Fields(o.daemon)) == 0 {
		return errors.New("--daemon: want a command")
	}
	return nil
}

// demoMain runs the demo and prints its report. A check that failed is an error.
func demoMain(ctx context.Context, out io.Writer, o demoOptions) error {
	if err := o.check(); err != nil {
		return usageError{err}
	}
	live := newDemoLive(out, o.json)
	report, err := runDemo(ctx, o, live)
	live.clear()
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("the demo was interrupted: %w", err)
	case err != nil:
		return fmt.Errorf("running the demo: %w", err)
	case o.json:
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		err = enc.Encode(report)
	default:
		_, err = io.WriteString(out, report.render(live.style))
	}
	if err != nil {
		return fmt.Errorf("printing the report: %w", err)
	}
	return report.err()
}

// demo is one run's moving parts.
type demo struct {
	o           demoOptions
	live        *demoLive
	lab         *netlab.Lab
	left, right *demoSide
	watch       *demoWatch
	capture     *netlab.Capture
	report      demoReport
}

// runDemo makes everything, measures, and removes everything, whatever happens in between.
func runDemo(ctx context.Context, o demoOptions, live *demoLive) (report demoReport, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lab, err := netlab.New("demo")
	if err != nil {
		return demoReport{}, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	removeStaleSockets(string(uapi.DefaultDir))
	d := &demo{o: o, live: live, lab: lab, report: demoReport{Streams: o.streams, QueueCount: o.queues}}
	live.say("two hosts, a cable with %d queues", o.queues)
	if err := d.build(); err != nil {
		return demoReport{}, err
	}
	defer func() { err = errors.Join(err, d.capture.Close()) }()
	if err := d.provePlaintextIsSeen(ctx); err != nil {
		return demoReport{}, err
	}
	live.say("starting both ends of the tunnel")
	defer d.killDaemons()
	if err := d.startDaemons(ctx, cancel); err != nil {
		return demoReport{}, err
	}
	if err := d.measure(ctx); err != nil {
		return demoReport{}, err
	}
	if err := d.collect(); err != nil {
		return demoReport{}, err
	}
	d.report.judge()
	return d.report, nil
}

// build makes the hosts, the cable and the capture on it.
func (d *demo) build() (err error) {
	if d.left, err = newDemoSide(d.lab, newDemoPlace("left", 1)); err != nil {
		return err
	}
	if d.right, err = newDemoSide(d.lab, newDemoPlace("right", 2)); err != nil {
		return err
	}
	cable, err := d.cable()
	if err != nil {
		return err
	}
	d.watch = newDemoWatch()
	d.capture, err = d.left.host.Capture(netlab.CaptureConfig{
		Device: cable.DeviceA, WholeOneIn: demoWholeOneIn, Queues: d.o.queues, Handle: d.watch.take,
	})
	return err
}

// cable lays one whose ends choose the receive queue as NICs do. Where eBPF is not to be had, the sending kernel chooses,
// and there is nothing to count queues with.
func (d *demo) cable() (*netlab.Cable, error) {
	cfg := netlab.CableConfig{
		Queues: d.o.queues, AddrsA: d.left.cable[:], AddrsB: d.right.cable[:], RSS: netlab.NewRSS(d.o.queues),
	}
	cable, err := d.lab.Cable(d.left.host, d.right.host, cfg)
	if err != nil {
		cfg.RSS = nil
		cable, err = d.lab.Cable(d.left.host, d.right.host, cfg)
	}
	return cable, err
}

func (d *demo) startDaemons(ctx context.Context, died context.CancelCauseFunc) error {
	argv := strings.Fields(d.o.daemon)
	for _, s := range []*demoSide{d.left, d.right} {
		if err := s.start(ctx, argv, died); err != nil {
			return err
		}
	}
	return errors.Join(d.left.setUp(d.right), d.right.setUp(d.left))
}

func (d *demo) killDaemons() {
	for _, s := range []*demoSide{d.left, d.right} {
		s.kill()
	}
}

// measure sends the traffic: a ping, which also makes the handshake, then the same load with spread off and on. A daemon
// that knows no spreading has one run.
func (d *demo) measure(ctx context.Context) error {
	servers, err := d.serve(ctx)
	if err != nil {
		return err
	}
	defer servers.stop()
	if err := d.setSpread(config.SpreadOff); err != nil {
		d.live.say("the daemon cannot spread")
		if d.report.Ping, err = d.connect(ctx, servers.v4); err != nil {
			return err
		}
		return d.load(ctx, servers, "", d.o.seconds/2)
	}
	if d.report.Ping, err = d.connect(ctx, servers.v4); err != nil {
		return err
	}
	if err := d.load(ctx, servers, demoSpreadOff, d.o.seconds/4); err != nil {
		return err
	}
	if err := d.beginSpread(ctx, servers.v4); err != nil {
		return err
	}
	return d.load(ctx, servers, demoSpreadOn, d.o.seconds/4)
}

// load sends TCP over IPv4 and UDP over IPv6, each for so many seconds, and adds what came of it to the report.
func (d *demo) load(ctx context.Context, s demoServers, spread string, seconds float64) error {
	d.live.title = spread
	before, err := d.capture.Queues()
	if err != nil {
		return err
	}
	d.watch.forgetPorts()
	run, length := demoRun{Spread: spread}, time.Duration(seconds*float64(time.Second))
	tcp := traffic.Config{Kind: traffic.TCP, Server: s.v4.Addr(), Streams: d.o.streams, Duration: length}
	if run.TCP, err = d.run(ctx, tcp); err != nil {
		return err
	}
	udp := traffic.Config{
		Kind: traffic.UDP, Server: s.v6.Addr(), Streams: d.o.streams, Duration: length, Train: demoTrain,
		BitsPerSecond: max(run.TCP.BitsPerSecond*demoUDPShare, demoUDPLeast),
	}
	if run.UDP, err = d.run(ctx, udp); err != nil {
		return err
	}
	run.SourcePorts = d.watch.sourcePorts()
	run.Queues, err = d.queuesSince(before)
	d.report.Runs = append(d.report.Runs, run)
	return err
}

// connect pings through the tunnel until the handshake is made, then measures.
func (d *demo) connect(ctx context.Context, s *traffic.Server) (traffic.Result, error) {
	d.live.say("waiting for the handshake")
	silent := errors.New("no answer through the tunnel: there was no handshake")
	ctx, cancel := context.WithTimeoutCause(ctx, demoConnect, silent)
	defer cancel()
	cfg := traffic.Config{Kind: traffic.Ping, Server: s.Addr(), Duration: demoPing, Size: 64, Within: d.left.host.Do}
	return traffic.Run(ctx, cfg)
}

func (d *demo) run(ctx context.Context, cfg traffic.Config) (traffic.Result, error) {
	cfg.Within = d.left.host.Do
	cfg.Progress = d.live.phase(cfg.Kind, cfg.Duration)
	return traffic.Run(ctx, cfg)
}

// queuesSince counts what the cable carried to the right host, by receive queue.
func (d *demo) queuesSince(before []netlab.QueueCount) ([]netlab.QueueCount, error) {
	now, err := d.capture.Queues()
	for i := range now {
		now[i].Packets -= before[i].Packets
		now[i].Trains -= before[i].Trains
		now[i].Bytes -= before[i].Bytes
	}
	return now, err
}

// collect ends the capture, takes the daemons' figures, and stops them. In this order: what one end still sends when the
// other is gone comes back in ICMP errors, which are not WireGuard.
func (d *demo) collect() (err error) {
	if err := d.capture.Stop(); err != nil {
		return err
	}
	if d.report.Left, err = d.left.stats(); err != nil {
		return err
	}
	if d.report.Right, err = d.right.stats(); err != nil {
		return err
	}
	if err := errors.Join(d.left.stop(), d.right.stop()); err != nil {
		return err
	}
	d.report.Cable = d.watch.result()
	d.report.Cable.Missed = d.capture.Stats().Missed
	return nil
}

// isTerminal reports whether out is one that understands cursor control.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}
