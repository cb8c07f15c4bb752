// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// SpreadSource returns the status of the devices on which source ports are spread, as an spreader.Host's Status does. It is
// called once per scrape; scrapes may run concurrently.
type SpreadSource func(context.Context) ([]spreader.DeviceStatus, error)

// spreadFamilies are the families of SpreadCollector.
var spreadFamilies list

var (
	spreadAttached = spreadFamilies.add("ropewalk_spread_attached", gauge, "1 if the program of a hook (spread, gather) is attached, else 0. The kind is tcx, tc, xdp or none.", "device hook kind")
	spreadProblems = spreadFamilies.add("ropewalk_spread_problems", gauge, "Number of problems of a device; `ropewalk spread status` describes them.", "device")
	spreadPeers    = spreadFamilies.add("ropewalk_spread_peers", gauge, "Peers to which the flows of a tunnel are spread.", "device tunnel port")
	spreadLanes    = spreadFamilies.add("ropewalk_spread_lanes", gauge, "Source ports used for a peer: the maximum over the peers of the tunnel.", "device tunnel port")
	spreadStalled  = spreadFamilies.add("ropewalk_spread_stalled_peers", gauge, "Peers to which the kernel's WireGuard sends and from which it receives nothing but handshakes, as the process that watches them saw last.", "device tunnel port")
	spreadEvents   = spreadFamilies.add("ropewalk_spread_events_total", counter, "Events of the spread and gather programs, with the names of `ropewalk spread status --json`.", "device event")
	spreadQueues   = spreadFamilies.add("ropewalk_spread_receive_queue_datagrams_total", counter, "Datagrams received for the tunnels, by receive queue.", "device queue")
	spreadFiltered = spreadFamilies.add("ropewalk_spread_filtered_errors_total", counter, "ICMP errors dropped on the devices of tunnels and containers, since they may be forged.", "")
)

// SpreadCollector is a prometheus.Collector for the spread and gather programs on the devices of a host.
type SpreadCollector struct{ source SpreadSource }

// NewSpreadCollector returns a SpreadCollector of the status that source returns.
func NewSpreadCollector(source SpreadSource) *SpreadCollector {
	return &SpreadCollector{source}
}

// Describe implements prometheus.Collector.
func (c *SpreadCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, f := range spreadFamilies {
		ch <- f.desc
	}
}

// statusTimeout limits reading the status of the devices. It is less than the 10 s that Prometheus waits, so that the scrape
// returns an error.
const statusTimeout = 5 * time.Second

var errStatusTimeout = errors.New("another process holds the lock of the spread and gather programs for too long")

// Collect implements prometheus.Collector. If the status of the devices cannot be read, the scrape fails.
func (c *SpreadCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), statusTimeout, errStatusTimeout)
	defer cancel()
	devices, err := c.source(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(spreadAttached.desc, fmt.Errorf("scrape failed: reading the status of the spread and gather programs (see `ropewalk spread status`): %w", err))
		return
	}
	for i := range devices {
		c.device(ch, &devices[i])
	}
	if len(devices) > 0 {
		ch <- spreadFiltered.sample(float64(devices[0].Filter.Dropped))
	}
}

func (c *SpreadCollector) device(ch chan<- prometheus.Metric, d *spreader.DeviceStatus) {
	emit := func(f *family, v float64, labels ...string) {
		ch <- f.sample(v, append([]string{label(d.Device)}, labels...)...)
	}
	emit(spreadAttached, boolValue(d.Spread.State == hook.Attached.String()), "spread", d.Spread.Kind)
	emit(spreadAttached, boolValue(d.Gather.State == hook.Attached.String()), "gather", d.Gather.Kind)
	emit(spreadProblems, float64(len(d.Problems)))
	for _, t := range d.Tunnels {
		name, port := label(t.Name), strconv.Itoa(int(t.Port))
		emit(spreadPeers, float64(len(t.Peers)), name, port)
		lanes, stalled := 0, 0.0
		for _, p := range t.Peers {
			lanes = max(lanes, len(p.Lanes))
			stalled += boolValue(p.Stalled)
		}
		emit(spreadStalled, stalled, name, port)
		emit(spreadLanes, float64(lanes), name, port)
	}
	for _, event := range d.Counters {
		emit(spreadEvents, float64(event.Count), event.Name)
	}
	for queue, n := range d.Queues {
		emit(spreadQueues, float64(n), strconv.Itoa(queue))
	}
}
