// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"net/rpc/jsonrpc"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

// kernelPair is two agents without ssh, each in a namespace of its own, with a cable between them.
type kernelPair struct {
	testing.TB
	hosts  [2]*netlab.Host
	agents [2]*Host
	addrs  [2]netip.Prefix
	cable  [2]string // the devices
}

func newKernelPair(t testing.TB) *kernelPair {
	lab, err := netlab.New("kernelends")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, lab.Close()) })
	if why := inKernel(); why != "" {
		t.Skipf("make test-kernels runs kernels that have WireGuard: %s", why)
	}
	p := &kernelPair{TB: t, addrs: [2]netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("192.0.2.2/24")}}
	for i, name := range []string{"a", "b"} {
		p.hosts[i], err = lab.Host(name)
		expect.NoError(t, err)
		p.agents[i] = &Host{&agent{ctx: t.Context()}}
	}
	cable, err := lab.Cable(p.hosts[0], p.hosts[1], netlab.CableConfig{Queues: 2, AddrsA: p.addrs[:1], AddrsB: p.addrs[1:]})
	expect.NoError(t, err)
	p.cable = [2]string{cable.DeviceA, cable.DeviceB}
	return p
}

const kernelPort = 51833

// open opens both ends as Open does, with spread in front if attach is set.
func (p *kernelPair) open(attach bool) {
	p.Helper()
	var secret noise.PresharedKey
	far := [2]netip.AddrPort{netip.AddrPortFrom(p.addrs[1].Addr(), kernelPort), netip.AddrPortFrom(netip.IPv6Unspecified(), kernelPort)}
	for i, h := range p.hosts {
		args := OpenArgs{Kernel: true, Traffic: []string{ropewalk.Need(p), "traffic"}, Secret: secret.Base64(), Port: kernelPort, Far: far[i], MTU: 1400}
		if attach {
			args.spread(ropewalk.Need(p), p.cable[i], netip.AddrPortFrom(p.addrs[1-i].Addr(), kernelPort))
			args.Attach = append(args.Attach, "--lanes", "4") // few ports to probe: an emulator is slow
		}
		expect.NoError(p, h.Do(func() error { return p.agents[i].Open(args, new(None)) }))
	}
	expect.EventuallyNoError(p, "an answer through the tunnel", func() error {
		var r PingReply
		err := p.agents[0].Ping(PingArgs{To: testbed.FarAddr(), Count: 1, Interval: time.Second}, &r)
		if err == nil && len(r.RTTs) == 0 {
			err = errors.New("no answer")
		}
		return err
	})
}

// send sends TCP streams from one end to the other.
func (p *kernelPair) send(from int) {
	p.Helper()
	cfg := traffic.Config{Kind: traffic.TCP, Streams: 8, Duration: 200 * time.Millisecond}
	cfg.Server = netip.AddrPortFrom([2]netip.Addr{testbed.FarAddr(), testbed.NearAddr()}[from], Port)
	res, err := testbed.Client([]string{ropewalk.Need(p), "traffic"}, cfg, func(argv []string) ([]byte, error) {
		var r RunReply
		err := p.agents[from].Run(argv, &r)
		return r.Out, err
	})
	if err != nil || res.Bytes == 0 {
		p.Fatalf("from host %d: %+v, %v", from, res, err)
	}
}

// attached are a host's devices with spread.
func (p *kernelPair) attached(i int) []spreader.DeviceStatus {
	p.Helper()
	out, err := p.hosts[i].Command(p.Context(), ropewalk.Need(p), "spread", "status", "--json").Output()
	expect.NoError(p, err)
	var status struct{ Devices []spreader.DeviceStatus }
	expect.NoError(p, json.Unmarshal(out, &status))
	return status.Devices
}

func gathered(devices []spreader.DeviceStatus) (n uint64) {
	for _, d := range devices {
		for _, c := range d.Counters {
			if c.Name == "gather" {
				n += c.Count
			}
		}
	}
	return n
}

func TestKernelWireGuardCarriesTrafficAloneAndBehindSpread(t *testing.T) {
	p := newKernelPair(t)
	for _, attach := range []bool{false, true} {
		p.open(attach)
		for i := range p.hosts {
			p.send(i)
		}
		if attach { // each of its source ports is probed first, once in 64 messages
			expect.Eventually(t, "messages from other source ports in both directions", func() bool {
				p.send(0)
				return gathered(p.attached(0)) > 0 && gathered(p.attached(1)) > 0
			})
		} else if n := len(p.attached(0)); n > 0 {
			t.Errorf("spread is attached to %d devices", n)
		}
		for i, h := range p.hosts {
			expect.NoError(t, h.Do(func() error { return p.agents[i].Close(None{}, new(None)) }))
			if left := p.attached(i); len(left) > 0 {
				t.Errorf("spread is left on host %d: %+v", i, left)
			}
		}
	}
}

// TestOfflineCPUsReturn takes the CPUs of this machine offline. Only the machines of test/kernels allow that.
func TestOfflineCPUsReturn(t *testing.T) {
	if os.Getenv("ROPEWALK_OFFLINE_CPUS") == "" {
		t.Skip("takes CPUs offline: make test-kernels does")
	}
	before := cpuList(text("/sys/devices/system/cpu/online"))
	if len(before) < 2 {
		t.Fatalf("the CPUs are %v, want two", before)
	}
	cpu := Offline(before[1])
	for _, end := range []string{"ssh ends", "the other side vanishes", "interrupted"} {
		t.Run(end, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			in, requests := io.Pipe()
			answers, out := io.Pipe()
			cfg := AgentConfig{Dir: filepath.Join(t.TempDir(), "programs"), Silence: time.Hour}
			if end == "the other side vanishes" {
				cfg.Silence = 5 * time.Second
			}
			expect.NoError(t, os.Mkdir(cfg.Dir, 0o700))
			ended := make(chan error, 1)
			go func() { ended <- Serve(ctx, in, out, cfg) }()
			expect.NoError(t, tar.NewWriter(requests).Close())
			c := jsonrpc.NewClient(&conn{answers, requests, requests})
			expect.NoError(t, c.Call("Host.Set", []Setting{cpu}, new(None)))
			if got := cpuList(text("/sys/devices/system/cpu/online")); slices.Contains(got, before[1]) {
				t.Errorf("online are %v", got)
			}
			switch end {
			case "ssh ends":
				expect.NoError(t, requests.Close())
			case "interrupted":
				stop()
			}
			<-ended
			if got := cpuList(text("/sys/devices/system/cpu/online")); !slices.Equal(got, before) {
				t.Errorf("online are %v, want %v", got, before)
			}
		})
	}
}
