// SPDX-License-Identifier: Apache-2.0

// Package demo runs both ends of a tunnel in two network namespaces and sends test traffic through
// it. It captures packets on the cable between them, and reports whether every check passed. It
// removes everything that it creates.
//
// Not for other programs: it may change without notice.
package demo

import (
	"context"
	"errors"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Options configures a demo.
type Options struct {
	Seconds float64  // duration of the traffic
	Streams int      // parallel streams, each one flow: 1 to traffic.MaxStreams
	Queues  int      // of the cable: 1 to MaxQueues
	Daemon  []string // command that serves the interface given as its last argument
}

// MaxQueues is the largest number of queues of the cable.
const MaxQueues = 64

const (
	// trainLen is the number of datagrams per send of the UDP streams.
	trainLen = 32
	// udpShare is the UDP load as a share of the TCP throughput, so that the tunnel is busy but not overloaded.
	udpShare       = 0.5
	minUDPRate     = 1e6
	pingTime       = 300 * time.Millisecond
	connectTimeout = 15 * time.Second
	spreadTimeout  = 15 * time.Second
)

// demo is the state of one run.
type demo struct {
	o           Options
	live        *Live
	lab         *netlab.Lab
	left, right *Side
	frames      *frameCounter
	capture     *netlab.Capture
	report      Report
}

// Run runs a demo, and removes everything that it created, also after an error. It needs root. A failed check is not an error: see
// Report.Err.
func Run(ctx context.Context, o Options, live *Live) (report Report, err error) {
	defer live.clear()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lab, err := netlab.New("demo")
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	_ = uapi.DefaultDir.Sweep(socketGlob, time.Minute) // the sockets of killed demos; this demo's socket has another name
	d := &demo{o: o, live: live, lab: lab, report: Report{Streams: o.Streams, QueueCount: o.Queues}}
	live.step("creating two hosts and a cable with %d queues", o.Queues)
	if err := d.build(); err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, d.capture.Close()) }()
	if err := d.testPlaintextDetection(ctx); err != nil {
		return Report{}, err
	}
	live.step("starting both ends of the tunnel")
	defer d.killDaemons()
	if err := d.startDaemons(ctx, cancel); err != nil {
		return Report{}, err
	}
	if err := d.measure(ctx); err != nil {
		return Report{}, err
	}
	if err := d.collect(); err != nil {
		return Report{}, err
	}
	d.report.runChecks()
	return d.report, nil
}

// build creates the hosts, the cable and the capture on it.
func (d *demo) build() (err error) {
	if d.left, err = NewSide(d.lab, NewHostAddresses("left", 1)); err != nil {
		return err
	}
	if d.right, err = NewSide(d.lab, NewHostAddresses("right", 2)); err != nil {
		return err
	}
	cable, err := d.cable()
	if err != nil {
		return err
	}
	d.frames = newFrameCounter()
	d.capture, err = d.left.Host.Capture(netlab.CaptureConfig{
		Device: cable.DeviceA, FullPacketOneIn: fullPacketOneIn, Queues: d.o.Queues, Handle: d.frames.count,
	})
	return err
}

// cable creates a cable with RSS. Without eBPF there is no RSS, and no packets are counted by queue.
func (d *demo) cable() (*netlab.Cable, error) {
	cfg := netlab.CableConfig{
		Queues: d.o.Queues, AddrsA: d.left.Cable[:], AddrsB: d.right.Cable[:], RSS: netlab.NewRSS(d.o.Queues),
	}
	cable, err := d.lab.Cable(d.left.Host, d.right.Host, cfg)
	if err != nil {
		cfg.RSS = nil
		cable, err = d.lab.Cable(d.left.Host, d.right.Host, cfg)
	}
	return cable, err
}

func (d *demo) startDaemons(ctx context.Context, died context.CancelCauseFunc) error {
	for _, s := range []*Side{d.left, d.right} {
		if err := s.Start(ctx, d.o.Daemon, died); err != nil {
			return err
		}
	}
	return errors.Join(d.left.SetUp(d.right), d.right.SetUp(d.left))
}

func (d *demo) killDaemons() {
	for _, s := range []*Side{d.left, d.right} {
		s.Kill()
	}
}

// measure sends the traffic: a ping, which also starts the handshake, then the same load with spread off and on. If the daemon does
// not support spread, there is one load.
func (d *demo) measure(ctx context.Context) error {
	servers, err := d.serve(ctx)
	if err != nil {
		return err
	}
	defer servers.stop()
	if err := d.setSpread(config.SpreadOff); err != nil {
		d.live.step("the daemon does not support spread")
		if d.report.Ping, err = d.connect(ctx, servers.v4); err != nil {
			return err
		}
		return d.load(ctx, servers, "", d.o.Seconds/2)
	}
	if d.report.Ping, err = d.connect(ctx, servers.v4); err != nil {
		return err
	}
	if err := d.load(ctx, servers, spreadOff, d.o.Seconds/4); err != nil {
		return err
	}
	if err := d.startSpread(ctx, servers.v4); err != nil {
		return err
	}
	return d.load(ctx, servers, spreadOn, d.o.Seconds/4)
}

// load sends TCP over IPv4 and UDP over IPv6, each for the configured seconds, and adds the results to the report.
func (d *demo) load(ctx context.Context, s servers, spread string, seconds float64) error {
	d.live.title = spread
	before, err := d.capture.Queues()
	if err != nil {
		return err
	}
	d.frames.resetPorts()
	run, length := Load{Spread: spread}, time.Duration(seconds*float64(time.Second))
	tcp := traffic.Config{Kind: traffic.TCP, Server: s.v4.Addr(), Streams: d.o.Streams, Duration: length}
	if run.TCP, err = d.run(ctx, tcp); err != nil {
		return err
	}
	udp := traffic.Config{
		Kind: traffic.UDP, Server: s.v6.Addr(), Streams: d.o.Streams, Duration: length, Train: trainLen,
		BitsPerSecond: max(run.TCP.BitsPerSecond*udpShare, minUDPRate),
	}
	if run.UDP, err = d.run(ctx, udp); err != nil {
		return err
	}
	run.SourcePorts = d.frames.sourcePorts()
	run.Queues, err = d.queuesSince(before)
	d.report.Runs = append(d.report.Runs, run)
	return err
}

// connect pings through the tunnel until the handshake has completed, and then measures the round-trip time.
func (d *demo) connect(ctx context.Context, s *traffic.Server) (traffic.Result, error) {
	d.live.step("waiting for the handshake")
	noReply := errors.New("no ping reply through the tunnel: the handshake did not complete")
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, noReply)
	defer cancel()
	cfg := traffic.Config{Kind: traffic.Ping, Server: s.Addr(), Duration: pingTime, Size: 64, InNamespace: d.left.Host.Do}
	return traffic.Run(ctx, cfg)
}

func (d *demo) run(ctx context.Context, cfg traffic.Config) (traffic.Result, error) {
	cfg.InNamespace = d.left.Host.Do
	cfg.Progress = d.live.progress(cfg.Kind, cfg.Duration)
	return traffic.Run(ctx, cfg)
}

// queuesSince returns the packets that the cable has carried to the right host since before, by receive queue.
func (d *demo) queuesSince(before []netlab.QueueCount) ([]netlab.QueueCount, error) {
	now, err := d.capture.Queues()
	for i := range now {
		now[i].Packets -= before[i].Packets
		now[i].Trains -= before[i].Trains
		now[i].Bytes -= before[i].Bytes
	}
	return now, err
}

// collect stops the capture, reads the daemons' statistics, and then stops the daemons. Otherwise the capture would contain ICMP
// errors for packets to the daemon that was stopped first.
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
	d.report.Cable = d.frames.result()
	d.report.Cable.Missed = d.capture.Stats().Missed
	return nil
}
