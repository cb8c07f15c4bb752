// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/measurement"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// fakeTunnel carries by AF_XDP twice as many datagrams as by UDP, and half of the TCP.
type fakeTunnel struct {
	mu    sync.Mutex
	modes []config.UnderlayMode
	rates []float64 // of paced datagrams, one way
	fails config.UnderlayMode
}

func (f *fakeTunnel) SetUnderlay(_ context.Context, mode config.UnderlayMode) (config.UnderlayReport, error) {
	f.modes = append(f.modes, mode)
	if mode == f.fails {
		return config.UnderlayReport{}, errors.New("another's program")
	}
	return config.UnderlayReport{How: measurement.Copy}, nil
}

func (f *fakeTunnel) Load(_ context.Context, flow testbed.Flow) (traffic.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rate := 4e9
	switch xdp := f.modes[len(f.modes)-1] == config.UnderlayXDP; {
	case flow.Kind == traffic.Ping:
		return traffic.Result{Latency: &traffic.Latency{}}, nil
	case xdp && flow.Kind == traffic.UDP:
		rate = 8e9
	case xdp:
		rate = 2e9
	}
	if flow.BitsPerSecond > 0 {
		rate = min(rate, flow.BitsPerSecond)
		if flow.Kind == traffic.UDP {
			f.rates = append(f.rates, flow.BitsPerSecond)
		}
	}
	burn() // so that the kernel's clock notices
	return traffic.Result{BitsPerSecond: rate, Counts: traffic.Counts{Bytes: uint64(rate / 8)}}, nil
}

// burn keeps a CPU busy for some ticks of the kernel's clock.
func burn() {
	before, _ := testbed.BusyCPU()
	for {
		if now, err := testbed.BusyCPU(); err != nil || now-before >= 30*time.Millisecond {
			return
		}
	}
}

func TestComparisonAlternatesUnderlays(t *testing.T) {
	f := &fakeTunnel{fails: config.UnderlayAuto}
	var steps []Progress
	r, err := CompareUnderlays(t.Context(), f, UnderlayConfig{Stretch: time.Second, Rounds: 2, Progress: func(p Progress) { steps = append(steps, p) }})
	expect.NoError(t, err)
	udp, xdp := config.UnderlayUDP, config.UnderlayXDP
	if want := []config.UnderlayMode{udp, xdp, xdp, udp, udp, xdp}; !slices.Equal(f.modes, want) {
		t.Errorf("got modes %v, want %v", f.modes, want)
	}
	if r.Datagrams.UDP.Gbps != 8 || r.Datagrams.XDP.Gbps != 16 || r.Trains.UDP.Gbps != 8 || r.Trains.XDP.Gbps != 4 || r.Mode != measurement.Copy {
		t.Errorf("got %+v", r)
	}
	for _, c := range []measurement.Comparison{r.Datagrams, r.Trains} {
		if c.UDP.NsPerPacket <= 0 || c.XDP.NsPerPacket <= 0 {
			t.Errorf("got no CPU time: %+v", c)
		}
	}
	if got := slices.Compact(slices.Clone(f.rates)); !slices.Equal(got, []float64{2e9}) || len(f.rates) != 8 {
		t.Errorf("CPU time was measured at %v, want half of the slower underlay each time", f.rates)
	}
	if last := steps[len(steps)-1]; last.Done != last.Total-1 {
		t.Errorf("progress ends with %+v", last)
	}
}

func TestFailedUnderlayFailsComparison(t *testing.T) {
	for _, mode := range []config.UnderlayMode{config.UnderlayUDP, config.UnderlayXDP} {
		_, err := CompareUnderlays(t.Context(), &fakeTunnel{fails: mode}, UnderlayConfig{Rounds: 1, Progress: func(Progress) {}})
		if err == nil || !strings.Contains(err.Error(), "another's program") {
			t.Errorf("%v: got %v", mode, err)
		}
	}
}

func TestUnderlayTableShowsRatioAndChoice(t *testing.T) {
	worse := measurement.Comparison{UDP: measurement.Cost{Gbps: 10, NsPerPacket: 500}, XDP: measurement.Cost{Gbps: 5, NsPerPacket: 600}}
	better := measurement.Comparison{UDP: measurement.Cost{Gbps: 1, NsPerPacket: 500}, XDP: measurement.Cost{Gbps: 1.5, NsPerPacket: 400}}
	for _, test := range []struct {
		datagrams, trains measurement.Comparison
		want              []string
	}{
		{better, worse, []string{"1.00       1.50     1.50", "500        600     1.20", "will use UDP sockets", "better for one kind"}},
		{better, better, []string{"will use AF_XDP"}},
	} {
		var b strings.Builder
		expect.NoError(t, WriteUnderlayTable(&b, &measurement.Result{Device: "eth0", Mode: "copy", Datagrams: test.datagrams, Trains: test.trains}))
		for _, want := range test.want {
			if !strings.Contains(b.String(), want) {
				t.Errorf("got\n%s\nwant %q", b.String(), want)
			}
		}
	}
}
