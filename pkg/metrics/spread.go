// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ropewalk/ropewalk/pkg/adopt"
	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
)

// SpreadSource looks at the devices, as an adopt.Host's Status does. It is called once per scrape, by several goroutines at once
// if there are several scrapes.
type SpreadSource func(context.Context) ([]adopt.DeviceStatus, error)

// The families of SpreadCollector.
type spreadFamily int

const (
	spreadAttached spreadFamily = iota
	spreadProblems
	spreadPeers
	spreadLanes
	spreadEvents
	spreadQueues
	spreadFamilyCount
)

// spreadDefinitions is the closed list of these. The documentation is generated from it.
var spreadDefinitions = [spreadFamilyCount]definition{
	spreadAttached: {"ropewalk_spread_attached", gauge, "Whether the program of a hook (spread, gather) is attached; gather may be of kind none.", "device hook kind"},
	spreadProblems: {"ropewalk_spread_problems", gauge, "What is wrong with a device; `ropewalk spread status` tells it in words.", "device"},
	spreadPeers:    {"ropewalk_spread_peers", gauge, "Peers towards which a tunnel is spread.", "device tunnel port"},
	spreadLanes:    {"ropewalk_spread_lanes", gauge, "Source ports towards a peer, the most that one has.", "device tunnel port"},
	spreadEvents:   {"ropewalk_spread_events_total", counter, "How often something happened to packets of the tunnels, as `ropewalk spread status --json` names it.", "device event"},
	spreadQueues:   {"ropewalk_spread_receive_queue_datagrams_total", counter, "Datagrams for the tunnels that came in, by receive queue.", "device queue"},
}

// SpreadCollector is a prometheus.Collector of what spreads on the devices of a host.
type SpreadCollector struct {
	source SpreadSource
	desc   [spreadFamilyCount]*prometheus.Desc
}

// NewSpreadCollector returns a SpreadCollector of what source says.
func NewSpreadCollector(source SpreadSource) *SpreadCollector {
	c := &SpreadCollector{source: source}
	for f, def := range spreadDefinitions {
		c.desc[f] = prometheus.NewDesc(def.name, def.help, strings.Fields(def.labels), nil)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *SpreadCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.desc {
		ch <- d
	}
}

// lookFor is how long a look at the devices may take: less than the 10 s that Prometheus waits, so that it learns what is wrong.
const lookFor = 5 * time.Second

var errSlow = errors.New("another process holds what spreads for too long")

// Collect implements prometheus.Collector. Where the devices cannot be looked at, the scrape fails.
func (c *SpreadCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), lookFor, errSlow)
	defer cancel()
	devices, err := c.source(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(c.desc[spreadAttached], fmt.Errorf("looking at what spreads: %w", err))
		return
	}
	for i := range devices {
		c.device(ch, &devices[i])
	}
}

func (c *SpreadCollector) device(ch chan<- prometheus.Metric, d *adopt.DeviceStatus) {
	emit := func(f spreadFamily, v float64, labels ...string) {
		labels = append([]string{label(d.Device)}, labels...)
		m, err := prometheus.NewConstMetric(c.desc[f], spreadDefinitions[f].kind.valueType(), v, labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(c.desc[f], fmt.Errorf("collecting %s: %w", spreadDefinitions[f].name, err))
		}
		ch <- m
	}
	emit(spreadAttached, truth(d.Spread.State == hook.Attached.String()), "spread", d.Spread.Kind)
	emit(spreadAttached, truth(d.Gather.State == hook.Attached.String()), "gather", d.Gather.Kind)
	emit(spreadProblems, float64(len(d.Problems)))
	for _, t := range d.Tunnels {
		name, port := label(t.Name), strconv.Itoa(int(t.Port))
		emit(spreadPeers, float64(len(t.Peers)), name, port)
		lanes := 0
		for _, p := range t.Peers {
			lanes = max(lanes, len(p.Lanes))
		}
		emit(spreadLanes, float64(lanes), name, port)
	}
	for _, event := range d.Counters {
		emit(spreadEvents, float64(event.Count), event.Name)
	}
	for queue, n := range d.Queues {
		emit(spreadQueues, float64(n), strconv.Itoa(queue))
	}
}
