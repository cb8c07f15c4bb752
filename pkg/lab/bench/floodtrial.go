// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"net/netip"
	"time"

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

// floodScenarios are what the trial compares. The last one is the flood at the tunnel itself.
func (l *Lab) floodScenarios(a *crossTraffic) []floodScenario {
	b := l.B.Cable[0].Addr()
	return []floodScenario{
		{name: "alone"},
		{name: "elsewhere", from: a.otherHostSource, to: a.otherHost, port: listenPort},
		{name: "closed", from: a.localAddr, to: b, port: closedPort},
		{name: "tunnel", from: a.localAddr, to: b, port: listenPort},
	}
}

// floodImpact measures TCP of four streams at a rate, 0 for all there is, while initiations are sent as fast as one sender can.
// That sender needs a core wherever they go, so the result is the TCP throughput with a flood at the tunnel, relative to that
// with the same flood at another host.
func floodImpact(rate float64) func(context.Context, *Lab, time.Duration) (Sample, error) {
	return func(ctx context.Context, l *Lab, d time.Duration) (Sample, error) {
		if l.Raw() {
			return Sample{}, ErrNoDaemon
		}
		a, err := l.addCrossTraffic()
		if err != nil {
			return Sample{}, err
		}
		more := map[string]float64{}
		for _, s := range l.floodScenarios(a) {
			if err := l.runScenario(ctx, s, Flow{Config: traffic.Config{
				Kind: traffic.TCP, Streams: 4, BitsPerSecond: rate, Duration: d,
			}}, more); err != nil {
				return Sample{}, err
			}
		}
		return floodSample(more)
	}
}

// runScenario adds a scene's figures.
func (l *Lab) runScenario(ctx context.Context, s floodScenario, f Flow, more map[string]float64) error {
	if s.port == 0 {
		o, err := l.Send(ctx, f)
		more[s.name+"_gbps"] = o.Gbps()
		return err
	}
	before := l.B.drops()
	fl, err := startFlood(l.A.Host, l.B.key.Public(), s.from, netip.AddrPortFrom(s.to, s.port))
	if err != nil {
		return err
	}
	err = pause(ctx, floodLead)
	var o Outcome
	if err == nil {
		o, err = l.Send(ctx, f)
	}
	sent, perSecond, floodErr := fl.stop()
	err = errors.Join(err, floodErr)
	more[s.name+"_gbps"], more[s.name+"_flood_kpps"] = o.Gbps(), perSecond/1e3
	if err == nil && s.to == l.B.Cable[0].Addr() && s.port == listenPort {
		addDrops(more, l.B.drops().since(before), sent)
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
func floodSample(more map[string]float64) (Sample, error) {
	if more["elsewhere_gbps"] == 0 {
		return Sample{}, errors.New("no TCP data arrived during the flood at another host")
	}
	return Sample{Value: 100 * more["tunnel_gbps"] / more["elsewhere_gbps"], More: more}, nil
}
