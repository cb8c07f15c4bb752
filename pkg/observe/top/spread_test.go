// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/test/golden"
)

// spreadAfter is a device after n seconds, with two flows and peers, as many as endpoints.
func spreadAfter(n uint64, endpoints ...string) *spreader.DeviceFlows {
	tunnel := spreader.TunnelStatus{Name: "wg0", Port: 51820, Interface: &spreader.InterfaceCounters{RxPackets: n * 990}}
	for i, endpoint := range endpoints {
		tunnel.Peers = append(tunnel.Peers, spreader.PeerStatus{
			Endpoint: netip.MustParseAddrPort(endpoint), PublicKey: fmt.Sprintf("%043d=", i),
			ReceivedBytes: n * 1e6 * uint64(i+1), SentBytes: n * 3e6, Ready: true, Blocked: []uint16{61001},
			Lanes: []spreader.LaneStatus{{Port: 61000, Load: 1000 * uint64(i+1), Share: 0.25}, {Port: 61001, Load: 3000, Share: 0.75}},
		})
	}
	return &spreader.DeviceFlows{
		DeviceStatus: spreader.DeviceStatus{
			Device: "eth0", Queues: []uint64{n * 600, n * 400}, Tunnels: []spreader.TunnelStatus{tunnel},
			Counters: []spreader.Counter{{Name: "spread", Count: n * 2000, Help: "data messages"}, {Name: "gather", Help: "datagrams"}},
		},
		At: time.Unix(int64(n), 0), Flows: []spreader.Flow{{Hash: "00a1", Lane: 1}, {Hash: "7f00", Lane: 3}},
	}
}

func TestSpreadScreensMatchGoldenFiles(t *testing.T) {
	one := CompareSpread(spreadAfter(1, "192.0.2.7:51820"), spreadAfter(3, "192.0.2.7:51820"))
	endpoints := []string{"192.0.2.7:51820", "[2001:db8::7]:51820", "192.0.2.9:1"}
	paused := spreadAfter(2, endpoints...)
	paused.Tunnels[0].Peers[0].Paused, paused.Tunnels[0].Peers[1].Ready = true, false
	many := CompareSpread(spreadAfter(1, endpoints...), paused)
	for name, tt := range map[string]struct {
		*SpreadFrame
		Options
	}{
		"once":   {one, Options{Width: 100}},
		"ascii":  {one, Options{Width: 80, ASCII: true}},
		"120x40": {many, Options{Width: 120, Height: 40, Keys: true}},
		"40x10":  {many, Options{Width: 40, Height: 10, Keys: true}},
		"scroll": {many, Options{Width: 80, Height: 10, Keys: true, Scroll: 100, Paused: true, Order: BySent}},
		"help":   {many, Options{Width: 80, Height: 24, Keys: true, View: Help}},
		"first":  {CompareSpread(nil, &spreader.DeviceFlows{DeviceStatus: spreader.DeviceStatus{Device: "eth0"}}), Options{Width: 80}},
	} {
		text := tt.Render(tt.Options)
		checkScreen(t, text, tt.Options)
		golden.Check(t, "testdata/spread-"+name+".golden", text)
	}
}

func TestSpreadScreenScrollsToLastRow(t *testing.T) {
	f := CompareSpread(nil, spreadAfter(1, "192.0.2.7:51820", "192.0.2.8:51820", "192.0.2.9:51820"))
	o := Options{Width: 80, Height: 9, Keys: true}
	if text := f.Render(o); strings.Contains(text, "no events") {
		t.Errorf("above the end:\n%s", text)
	}
	if o.Scroll = f.MaxScroll(o); !strings.Contains(f.Render(o), "no events") {
		t.Errorf("at the end:\n%s", f.Render(o))
	}
}

func TestSpreadFrameSortsPeersAndPorts(t *testing.T) {
	endpoints := []string{"192.0.2.9:1", "192.0.2.7:1"}
	f := CompareSpread(spreadAfter(1, endpoints...), spreadAfter(2, endpoints...))
	for _, tt := range []struct {
		order   Order
		reverse bool
		peer    string
		port    uint16
	}{
		{ByDefault, false, "192.0.2.7:1", 61001},
		{ByReceived, false, "192.0.2.7:1", 61000},
		{ByReceived, true, "192.0.2.9:1", 61000},
		{BySent, false, "192.0.2.7:1", 61001},
		{BySent, true, "192.0.2.7:1", 61000},
		{ByName, false, "192.0.2.7:1", 61000},
		{ByName, true, "192.0.2.9:1", 61001},
	} {
		f.Sort(tt.order, tt.reverse)
		if peer, port := f.Peers[0].Peer.String(), f.Ports[0].Port; peer != tt.peer || port != tt.port {
			t.Errorf("by %s, reverse %t: got %s and %d first, want %s and %d", tt.order, tt.reverse, peer, port, tt.peer, tt.port)
		}
	}
}

func TestRefusedDatagramsNeedCountersOfAllTunnels(t *testing.T) {
	before, now := spreadAfter(1), spreadAfter(2)
	if got := CompareSpread(before, now).Refused; got == nil || *got != (RefusedDatagrams{Received: 1000, Accepted: 990}) {
		t.Errorf("got %+v, want 1000 received and 990 accepted", got)
	}
	now.Tunnels = append(now.Tunnels, spreader.TunnelStatus{Name: "wg1"})
	if got := CompareSpread(before, now).Refused; got != nil {
		t.Errorf("a tunnel without counters: got %+v, want nil", got)
	}
	if got := CompareSpread(before, spreadAfter(1)).Refused; got != nil {
		t.Errorf("nothing arrived: got %+v, want nil", got)
	}
}
