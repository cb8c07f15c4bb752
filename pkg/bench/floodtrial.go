// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/traffic"
)

const (
	// floodLead is how long a flood lasts before the traffic begins.
	floodLead = 200 * time.Millisecond
	// closedPort is one at which nobody listens.
	closedPort = 9
)

// floodScenario is TCP from A to B beside a flood, or beside none.
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
// That sender needs a core wherever they go, so what counts is the throughput of a flood at the tunnel, over that of the
// same flood past it.
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

// addDrops adds what was dropped, in percent of what the flood sent.
func addDrops(more map[string]float64, drops dropCounts, sent uint64) {
	for reason, n := range drops {
		more[DropPrefix+reason] = 100 * float64(n) / float64(sent)
	}
}

// DropPrefix begins the names of the figures that say for what reason ropewalk dropped what, in percent of what was sent.
const DropPrefix = "dropped_"

// floodSample is the share of what a flood past the tunnel leaves.
func floodSample(more map[string]float64) (Sample, error) {
	if more["elsewhere_gbps"] == 0 {
		return Sample{}, errors.New("nothing arrived beside a flood at another host")
	}
	return Sample{Value: 100 * more["tunnel_gbps"] / more["elsewhere_gbps"], More: more}, nil
}
