// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

// deviceFlowsDocument is the document that --json prints for a device.
type deviceFlowsDocument struct {
	header
	Device  string            `json:"device"`
	Seconds float64           `json:"seconds"` // over which rates were measured
	Flows   []spreader.Flow   `json:"flows"`
	Peers   []peerRate        `json:"peers"`
	Ports   []portLoad        `json:"ports"`
	Rates   []counterRate     `json:"rates"`
	Refused *refusedDatagrams `json:"refused,omitempty"`
}

// peerRate is the traffic of one peer, as its WireGuard counts it.
type peerRate struct {
	Tunnel    string         `json:"tunnel"`
	Peer      netip.AddrPort `json:"peer"`
	PublicKey string         `json:"public_key"`
	Received  float64        `json:"received_bytes_per_second"`
	Sent      float64        `json:"sent_bytes_per_second"`
}

// portLoad is one source port towards one peer.
type portLoad struct {
	Tunnel string         `json:"tunnel"`
	Peer   netip.AddrPort `json:"peer"`
	Port   uint16         `json:"port"`
	Load   uint64         `json:"load"`  // bytes sent recently: halved every 134 ms
	Share  float64        `json:"share"` // of the peer's load
	Flows  *int           `json:"flows,omitempty"`
}

// counterRate is the rate of one event counter that has grown.
type counterRate struct {
	Name string  `json:"name"`
	Rate float64 `json:"per_second"`
	Help string  `json:"help"`
}

// refusedDatagrams compares what arrived for the tunnels of a device with what their WireGuard accepted.
type refusedDatagrams struct {
	Received float64 `json:"received_per_second"`
	Accepted float64 `json:"accepted_per_second"`
}

// device shows the flows of a device on which another WireGuard is spread. If there is none, it returns notServed.
func (o *flowsFlags) device(ctx context.Context, out io.Writer, name string, notServed error) error {
	if _, err := net.InterfaceByName(name); err != nil {
		return notServed
	}
	host := new(spreader.Host)
	before, err := host.Flows(ctx, name)
	switch {
	case err != nil:
		return withHint(err)
	case before == nil:
		return notServed
	case o.order != "rate":
		return usageError{fmt.Errorf("--sort %s: the ports of a device have rates only", o.order)}
	case o.peer != "" && len(portLoads(before, o.peer)) == 0:
		return fmt.Errorf("no peer of %s has an endpoint that begins with %q", name, o.peer)
	}
	for {
		if err := pause(ctx, o.interval); err != nil {
			return o.interrupted(err)
		}
		now, err := host.Flows(ctx, name)
		if err != nil {
			return withHint(err)
		}
		if now == nil {
			return fmt.Errorf("nothing is spread on %s any more", name)
		}
		if err := o.printDevice(out, before, now); err != nil || !o.watch {
			return err
		}
		before = now
	}
}

func (o *flowsFlags) printDevice(out io.Writer, before, now *spreader.DeviceFlows) error {
	seconds := now.At.Sub(before.At).Seconds()
	d := deviceFlowsDocument{
		header: headerOf("SpreadFlows"), Device: now.Device, Seconds: seconds, Flows: now.Flows, Peers: peerRates(before, now, o.peer, seconds), Ports: portLoads(now, o.peer),
		Rates: counterRates(before, now, seconds), Refused: refusedBetween(before, now, seconds),
	}
	found := len(d.Ports)
	if o.limit > 0 {
		d.Ports, d.Peers = d.Ports[:min(found, o.limit)], d.Peers[:min(len(d.Peers), o.limit)]
	}
	if o.json {
		return writeJSON(out, d)
	}
	text := renderDeviceFlows(&d, found, term.Style{Color: colored(out)})
	if o.watch {
		text += "\n"
	}
	_, err := io.WriteString(out, text)
	return err
}

// peerRates returns the peers whose endpoint begins with a text and that exchange messages, the busiest first.
func peerRates(before, now *spreader.DeviceFlows, peer string, seconds float64) []peerRate {
	was := map[string]spreader.PeerStatus{}
	for _, t := range before.Tunnels {
		for _, p := range t.Peers {
			was[t.Name+p.PublicKey] = p
		}
	}
	rates := []peerRate{}
	for _, t := range now.Tunnels {
		for _, p := range t.Peers {
			old, known := was[t.Name+p.PublicKey]
			if !known || p.PublicKey == "" || !strings.HasPrefix(p.Endpoint.String(), peer) {
				continue
			}
			received, sent := p.ReceivedBytes-old.ReceivedBytes, p.SentBytes-old.SentBytes
			if p.ReceivedBytes < old.ReceivedBytes || p.SentBytes < old.SentBytes || received+sent == 0 {
				continue // idle, or configured anew
			}
			rates = append(rates, peerRate{t.Name, p.Endpoint, p.PublicKey, float64(received) / seconds, float64(sent) / seconds})
		}
	}
	slices.SortStableFunc(rates, func(a, b peerRate) int { return cmp.Compare(b.Received+b.Sent, a.Received+a.Sent) })
	return rates
}

// portLoads returns the ports of the peers whose endpoint begins with a text, the busiest first.
func portLoads(f *spreader.DeviceFlows, peer string) []portLoad {
	loads, peers := []portLoad{}, 0
	for _, t := range f.Tunnels {
		peers += len(t.Peers)
	}
	for _, t := range f.Tunnels {
		for _, p := range t.Peers {
			if !strings.HasPrefix(p.Endpoint.String(), peer) {
				continue
			}
			for i, l := range p.Lanes {
				row := portLoad{Tunnel: t.Name, Peer: p.Endpoint, Port: l.Port, Load: l.Load, Share: l.Share}
				if peers == 1 { // the flow table does not name the peer
					n := flowsOfLane(f.Flows, i, len(p.Lanes))
					row.Flows = &n
				}
				loads = append(loads, row)
			}
		}
	}
	slices.SortStableFunc(loads, func(a, b portLoad) int { return cmp.Compare(b.Load, a.Load) })
	return loads
}

func flowsOfLane(flows []spreader.Flow, lane, lanes int) (n int) {
	for i := range flows {
		if flows[i].Lane%lanes == lane {
			n++
		}
	}
	return n
}

// counterRates returns the counters that have grown.
func counterRates(before, now *spreader.DeviceFlows, seconds float64) []counterRate {
	rates := []counterRate{}
	for i, c := range now.Counters {
		if i < len(before.Counters) && c.Count > before.Counters[i].Count {
			rates = append(rates, counterRate{c.Name, float64(c.Count-before.Counters[i].Count) / seconds, c.Help})
		}
	}
	return rates
}

// refusedBetween returns nil if the kernel does not count what a tunnel accepted, or if that is not less than what arrived.
func refusedBetween(before, now *spreader.DeviceFlows, seconds float64) *refusedDatagrams {
	was, known := acceptedBy(before)
	is, stillKnown := acceptedBy(now)
	received := sumOf(now.Queues) - sumOf(before.Queues)
	if !known || !stillKnown || is < was || sumOf(now.Queues) < sumOf(before.Queues) || received <= is-was {
		return nil
	}
	return &refusedDatagrams{float64(received) / seconds, float64(is-was) / seconds}
}

func acceptedBy(f *spreader.DeviceFlows) (sum uint64, known bool) {
	for _, t := range f.Tunnels {
		if t.Interface == nil {
			return 0, false
		}
		sum += t.Interface.RxPackets
	}
	return sum, len(f.Tunnels) > 0
}

func sumOf(counts []uint64) (sum uint64) {
	for _, n := range counts {
		sum += n
	}
	return sum
}

// renderDeviceFlows returns the flows as text. found is the number of ports before --limit.
func renderDeviceFlows(d *deviceFlowsDocument, found int, s term.Style) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s sending\n\n", s.Bold(printable(d.Device)), countOf(len(d.Flows), "flow"))
	renderPeerRates(&b, d.Peers)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TUNNEL\tPEER\tPORT\tFLOWS\tRECENT BYTES\tSHARE")
	for _, p := range d.Ports {
		flows := "-"
		if p.Flows != nil {
			flows = strconv.Itoa(*p.Flows)
		}
		fmt.Fprintf(w, "%s\t%v\t%d\t%s\t%s\t%.1f%%\n", printable(p.Tunnel), p.Peer, p.Port, flows, term.Thousands(p.Load), 100*p.Share)
	}
	_ = w.Flush()
	if found > len(d.Ports) {
		fmt.Fprintf(&b, "%d more, see --limit\n", found-len(d.Ports))
	}
	if len(d.Rates) > 0 {
		b.WriteByte('\n')
	}
	for _, r := range d.Rates {
		fmt.Fprintf(&b, "  %12s/s  %s\n", term.Thousands(uint64(r.Rate)), s.Faint(r.Help))
	}
	if r := d.Refused; r != nil {
		fmt.Fprintf(&b, "  %12s/s  %s\n", term.Thousands(uint64(r.Received-r.Accepted)),
			s.Faint("datagrams that WireGuard did not accept: replays, forged or stale ones (or on their way)"))
	}
	return b.String()
}

// renderPeerRates writes the table of peers, nothing if all are idle.
func renderPeerRates(b *strings.Builder, rates []peerRate) {
	if len(rates) == 0 {
		return
	}
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TUNNEL\tPEER\tPUBLIC KEY\tRECEIVED\tSENT")
	for _, r := range rates {
		fmt.Fprintf(w, "%s\t%v\t%s\t%s\t%s\n", printable(r.Tunnel), r.Peer, r.PublicKey, term.BitRate(8*r.Received), term.BitRate(8*r.Sent))
	}
	_ = w.Flush()
	b.WriteByte('\n')
}

// pause waits, or returns the cause of the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// interrupted returns nil for an interrupt of --watch, which ends only so.
func (o *flowsFlags) interrupted(err error) error {
	if o.watch {
		return nil
	}
	return err
}
