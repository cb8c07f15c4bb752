// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
)

const (
	// floodLead is how long a flood lasts before the traffic begins.
	floodLead = 200 * time.Millisecond
	// closedPort is a UDP port without a listener.
	closedPort = 9
)

// floodScenario is TCP from A to B with a concurrent flood, or without one.
type floodScenario struct {
	name     string
	from, to netip.Addr
	port     uint16 // 0: no flood
}

// floodScenarios are the scenarios that the trial compares. The last one is the flood at the
// tunnel itself.
func (l *Lab) floodScenarios(a *crossTraffic) []floodScenario {
	b := l.B.Cable[0].Addr()
	return []floodScenario{
		{name: "alone"},
		{name: "elsewhere", from: a.otherHostSource, to: a.otherHost, port: testbed.ListenPort},
		{name: "closed", from: a.localAddr, to: b, port: closedPort},
		{name: "tunnel", from: a.localAddr, to: b, port: testbed.ListenPort},
	}
}

// floodImpact measures TCP of four streams at a rate, 0 for all there is, while initiations are
// sent as fast as one sender can. The sender needs a core wherever they go. So the result is the
// TCP throughput with a flood at the tunnel, relative to the throughput with the same flood at
// another host.
func floodImpact(rate float64) func(context.Context, *Lab, time.Duration) (testbed.Sample, error) {
	return func(ctx context.Context, l *Lab, d time.Duration) (testbed.Sample, error) {
		if l.Raw() {
			return testbed.Sample{}, testbed.ErrNoDaemon
		}
		a, err := l.addCrossTraffic()
		if err != nil {
			return testbed.Sample{}, err
		}
		more := map[string]float64{}
		for _, s := range l.floodScenarios(a) {
			if err := l.runScenario(ctx, s, testbed.Flow{Config: traffic.Config{
				Kind: traffic.TCP, Streams: 4, BitsPerSecond: rate, Duration: d,
			}}, more); err != nil {
				return testbed.Sample{}, err
			}
		}
		return floodSample(more)
	}
}

// runScenario adds a scene's figures.
func (l *Lab) runScenario(ctx context.Context, s floodScenario, f testbed.Flow, more map[string]float64) error {
	if s.port == 0 {
		o, err := l.Send(ctx, f)
		more[s.name+"_gbps"] = o.Gbps()
		return err
	}
	before := dropsOf(l.B.Iface)
	fl, err := startFlood(l.A.Host, l.B.PublicKey(), s.from, netip.AddrPortFrom(s.to, s.port))
	if err != nil {
		return err
	}
	err = testbed.Pause(ctx, floodLead)
	var o testbed.Outcome
	if err == nil {
		o, err = l.Send(ctx, f)
	}
	sent, perSecond, floodErr := fl.stop()
	err = errors.Join(err, floodErr)
	more[s.name+"_gbps"], more[s.name+"_flood_kpps"] = o.Gbps(), perSecond/1e3
	if err == nil && s.to == l.B.Cable[0].Addr() && s.port == testbed.ListenPort {
		addDrops(more, dropsOf(l.B.Iface).since(before), sent)
	}
	return err
}

// addDrops adds the drops by reason, in percent of the initiations that the flood sent.
func addDrops(more map[string]float64, drops dropCounts, sent uint64) {
	for reason, n := range drops {
		more[DropPrefix+reason] = 100 * float64(n) / float64(sent)
	}
}

// DropPrefix is the name prefix of the drop figures. Each one counts ropewalk's drops for one reason, in percent of the
// initiations sent.
const DropPrefix = "dropped_"

// floodSample returns the throughput relative to that with a flood at another host.
func floodSample(more map[string]float64) (testbed.Sample, error) {
	if more["elsewhere_gbps"] == 0 {
		return testbed.Sample{}, errors.New("no TCP data arrived during the flood at another host")
	}
	return testbed.Sample{Value: 100 * more["tunnel_gbps"] / more["elsewhere_gbps"], More: more}, nil
}
