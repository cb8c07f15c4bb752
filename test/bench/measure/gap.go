// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

const (
	// gapRate is the load while something happens to a tunnel. It is enough that packets are
	// always under way, and not so much that pings are lost to it.
	gapRate    = 500e6
	gapStreams = 2
	// takeover is the flag with which `ropewalk run` takes a tunnel over.
	takeover = "--takeover"
)

// event is a disruption of the daemon of one side.
type event struct {
	name, what string
	// times is how often it happens, a stretch apart.
	times int
	// trigger causes the event for the i-th time, and returns when the daemon appears to work again.
	trigger func(ctx context.Context, l *Lab, s *testbed.Side, i int) error
}

// events returns the events that are measured.
func events() []event {
	return []event{
		{"gap_kill", "hole in pings of 1 ms, killed, started and configured again", 1, killAndRestart},
		{"gap_upgrade", "hole in pings of 1 ms, taken over twice by another process (run --takeover)", 2, upgrade},
		{"gap_switch", "hole in pings of 1 ms, underlay changed to udp, xdp, udp and xdp", 4, switchUnderlay},
	}
}

// killAndRestart kills the daemon, and restarts and configures it as a supervisor does after a crash.
func killAndRestart(ctx context.Context, l *Lab, s *testbed.Side, _ int) error {
	return l.Restart(ctx, s)
}

// upgrade is an upgrade in place: another process of the same command takes the tunnel over from
// the running process.
func upgrade(ctx context.Context, _ *Lab, s *testbed.Side, _ int) error {
	argv := slices.DeleteFunc(s.Daemon.Argv(), func(a string) bool { return a == takeover })
	return s.Replace(ctx, slices.Insert(argv, len(argv)-1, takeover)...)
}

// switchUnderlay changes the underlay of a daemon that runs, as `ropewalk set` does, and returns when data messages use it.
// `ropewalk set` itself reports no error for an unavailable underlay.
func switchUnderlay(ctx context.Context, _ *Lab, s *testbed.Side, i int) error {
	mode := config.UnderlayUDP
	if i%2 == 1 {
		mode = config.UnderlayXDP
	}
	c, err := uapi.Dial(s.Iface)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.Configure(config.Device{Settings: config.Settings{Underlay: &mode}}); err != nil {
		return err
	}
	return s.Await(ctx, func() error { return checkUnderlay(c, mode) })
}

// checkUnderlay returns nil if the daemon's data messages use the underlay, and the reason if they do not.
func checkUnderlay(c *uapi.Client, mode config.UnderlayMode) error {
	var st show.Stats
	if err := c.Stats(&st); err != nil {
		return err
	}
	switch {
	case st.Path == nil:
		return errors.New("the daemon does not report its underlay mode")
	case st.Path.Path != mode:
		return fmt.Errorf("data messages use underlay %s instead of %s: %s", st.Path.Path, mode, st.Path.Reason)
	}
	return nil
}

// gap measures the outage that an event at the sending side causes in a flow.
func gap(e event) func(context.Context, *Lab, time.Duration) (testbed.Sample, error) {
	return func(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
		if l.Raw() {
			return testbed.Sample{}, testbed.ErrNoDaemon
		}
		lead := min(testbed.LoadLead, d)
		length := lead + time.Duration(e.times)*d + testbed.LoadSpare
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		type result struct {
			res traffic.Result
			err error
		}
		load := make(chan result, 1)
		go func() {
			res, err := l.Load(ctx, testbed.Flow{Config: traffic.Config{
				Kind: traffic.TCP, Streams: gapStreams, BitsPerSecond: gapRate, Duration: length,
			}})
			load <- result{res, err}
		}()
		found, err := l.pingDuring(ctx, e, lead, d)
		if err != nil {
			cancel()
		}
		carried := <-load
		if err := errors.Join(err, carried.err, l.Err()); err != nil {
			return testbed.Sample{}, err
		}
		return gapSample(found, carried.res), nil
	}
}

// pingDuring pings while it triggers the event, and waits for a stretch after each time.
func (l *Lab) pingDuring(ctx context.Context, e event, lead, d time.Duration) (outage, error) {
	if err := testbed.Pause(ctx, lead/2); err != nil {
		return outage{}, err
	}
	pings, err := l.startPingStream(lead + time.Duration(e.times)*(d+testbed.ReadyLimit))
	if err != nil {
		return outage{}, err
	}
	err = testbed.Pause(ctx, lead/2)
	for i := 0; i < e.times && err == nil; i++ {
		err = e.trigger(ctx, l, l.A, i)
		if err == nil {
			err = testbed.Pause(ctx, d)
		}
	}
	return pings.finish(), err
}

func gapSample(o outage, load traffic.Result) testbed.Sample {
	return testbed.Sample{Value: o.hole.Seconds() * 1e3, More: map[string]float64{
		"lost": float64(o.lost), "sent": float64(o.sent), "late_ms": o.late.Seconds() * 1e3, "load_gbps": load.BitsPerSecond / 1e9,
	}}
}
