// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/test/golden"
)

// growingFlows reports three flows that send 1, 2 and 3 million bytes per second.
func growingFlows() func() any {
	now := int64(1e9)
	return func() any {
		now += 1e9
		r := device.FlowReport{Interface: "wg0", Lanes: 1, Now: now, Since: 2e9}
		for i, source := range []string{"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"} {
			r.Flows = append(r.Flows, device.Flow{
				FlowID: device.FlowID{Direction: "tx", Peer: "AAAA", Protocol: "tcp", Source: source, Destination: "10.0.1.1:443"},
				First:  2e9, Last: now, Bytes: uint64(i+1) * uint64(now-2e9) / 1e3, Drops: uint64(3 - i),
			})
		}
		return r
	}
}

func serveFlows(t *testing.T, flows func() any) uapi.Dir {
	t.Helper()
	dir := uapitest.NewDir(t)
	uapitest.RunServer(t, dir, "wg0", &uapi.Server{Handler: &topHandler{}, Log: slog.New(slog.DiscardHandler), Flows: flows})
	return dir
}

func runFlows(ctx context.Context, o flowsFlags, dir uapi.Dir) (string, error) {
	var out bytes.Buffer
	cmd := newFlowsCmd()
	cmd.SetOut(&out)
	cmd.SetContext(ctx)
	if o.order == "" {
		o.order = "rate"
	}
	o.interval = minFlowsInterval
	err := o.run(cmd, dir, nil)
	return out.String(), err
}

func TestFlowsPrintsLimitedTable(t *testing.T) {
	text, err := runFlows(t.Context(), flowsFlags{limit: 2}, serveFlows(t, growingFlows()))
	rows := strings.Split(text, "\n")
	if err != nil || len(rows) != 5 || !strings.Contains(rows[1], "24.0 Mb/s") || !strings.Contains(rows[2], "10.0.0.2:1") || rows[3] != "1 more, see --limit" {
		t.Errorf("got error %v, %q", err, text)
	}
	text, err = runFlows(t.Context(), flowsFlags{limit: 1, order: "drops"}, serveFlows(t, growingFlows()))
	if err != nil || !strings.Contains(text, "10.0.0.1:1") {
		t.Errorf("by drops: got error %v, %q, want 10.0.0.1 first", err, text)
	}
}

func TestFlowsPrintsJSON(t *testing.T) {
	text, err := runFlows(t.Context(), flowsFlags{json: true, limit: 1}, serveFlows(t, growingFlows()))
	var document flowsDocument
	if err == nil {
		err = json.Unmarshal([]byte(text), &document)
	}
	want := top.InnerFlow{Lane: "0", ByteRate: 3e6, DropRate: 0, Age: 1, Bytes: 3e6, Drops: 1}
	if err != nil || document.Kind != "Flows" || document.Seconds != 1 || document.Found != 3 || len(document.Flows) != 1 {
		t.Fatalf("got error %v, %s", err, text)
	}
	want.FlowID = device.FlowID{Direction: "tx", Peer: "AAAA", Protocol: "tcp", Source: "10.0.0.3:1", Destination: "10.0.1.1:443"}
	if got := document.Flows[0]; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFlowsWatchesUntilInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reports, next := 0, growingFlows()
	dir := serveFlows(t, func() any {
		if reports++; reports == 4 {
			cancel()
		}
		return next()
	})
	text, err := runFlows(ctx, flowsFlags{watch: true}, dir)
	if n := strings.Count(text, "DIR "); err != nil || n < 2 {
		t.Errorf("got %d tables, error %v, want at least 2, no error", n, err)
	}
}

func TestFlowsNeedsDaemonThatCounts(t *testing.T) {
	_, err := runFlows(t.Context(), flowsFlags{}, serveFlows(t, nil))
	if !errors.Is(err, syscall.EOPNOTSUPP) || !strings.Contains(err.Error(), "too old") {
		t.Errorf("got error %v, want %v", err, syscall.EOPNOTSUPP)
	}
	_, err = runFlows(t.Context(), flowsFlags{peer: "BBBB"}, serveFlows(t, growingFlows()))
	if err == nil || exitCode(err) != exitError {
		t.Errorf("unknown peer: got error %v, want exit code %d", err, exitError)
	}
}

// deviceFlowsAfter is a device after n seconds, with two flows to one peer.
func deviceFlowsAfter(n uint64) *spreader.DeviceFlows {
	peer := spreader.PeerStatus{
		Endpoint: netip.MustParseAddrPort("192.0.2.7:51820"), PublicKey: "BBBB", ReceivedBytes: n * 1e6, SentBytes: n * 3e6, Ready: true,
	}
	peer.Lanes = []spreader.LaneStatus{
		{Port: 61000, Load: 1000, Share: 0.25}, {Port: 61001, Load: 3000, Share: 0.75},
	}
	return &spreader.DeviceFlows{
		DeviceStatus: spreader.DeviceStatus{
			Device: "eth0", Queues: []uint64{n * 600, n * 400},
			Tunnels: []spreader.TunnelStatus{{
				Name: "wg0", Port: 51820, Peers: []spreader.PeerStatus{peer}, Interface: &spreader.InterfaceCounters{RxPackets: n * 990},
			}},
			Counters: []spreader.Counter{{Name: "spread", Count: n * 2000, Help: "data messages"}, {Name: "gather", Help: "datagrams"}},
		},
		At:    time.Unix(int64(n), 0),
		Flows: []spreader.Flow{{Hash: "00a1", Lane: 1}, {Hash: "7f00", Lane: 3}},
	}
}

func TestFlowsOfDeviceMatchGoldenFile(t *testing.T) {
	t.Setenv("LC_ALL", "C.UTF-8")
	t.Setenv("COLUMNS", "")
	var text, limited, document bytes.Buffer
	for out, o := range map[*bytes.Buffer]flowsFlags{&text: {}, &limited: {limit: 1}, &document: {json: true}} {
		if err := o.printDevice(out, deviceFlowsAfter(1), deviceFlowsAfter(3)); err != nil {
			t.Fatal(err)
		}
	}
	golden.Check(t, "testdata/flows-device.golden", text.String()+"\n"+limited.String()+"\n"+document.String())
}

func TestFlowsOfDeviceNeedMatchingOptions(t *testing.T) {
	for _, tt := range []struct {
		flags flowsFlags
		code  int
		want  string
	}{
		{flowsFlags{order: "age"}, exitUsage, "sorted by rate only"},
		{flowsFlags{order: "rate", peer: "192.0.2.8"}, exitError, "no peer of eth0"},
	} {
		if err := tt.flags.checkDevice(deviceFlowsAfter(1)); err == nil || exitCode(err) != tt.code || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.flags, err, tt.want)
		}
	}
	if err := (&flowsFlags{order: "rate", peer: "192.0.2.7"}).checkDevice(deviceFlowsAfter(1)); err != nil {
		t.Error(err)
	}
}
