// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/xdp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// localCPUs returns two of the CPUs that the test may use, or the only one.
func localCPUs(t *testing.T) config.ReceiveCPUs {
	t.Helper()
	var set unix.CPUSet
	expect.NoError(t, unix.SchedGetaffinity(0, &set))
	var list []int
	for cpu := 0; len(list) < min(2, set.Count()); cpu++ {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return config.ReceiveCPUs{List: list}
}

// disableChecksumOffload makes the peer's host compute checksums in software, so that packets arrive as from real
// hardware.
func (s *testNet) disableChecksumOffload() {
	s.Helper()
	expect.NoError(s, s.far.Do(func() error {
		links, err := netlink.LinkList()
		for _, l := range links {
			if err == nil && l.Type() == "veth" {
				err = hostnet.SetFeature(l.Attrs().Name, "tx-checksum-ip-generic", false)
			}
		}
		return err
	}))
}

// awaitReceiveCPUs waits until the CPUs are in use, and returns the report.
func (s *testNet) awaitReceiveCPUs(want config.ReceiveCPUs) (r config.UnderlayReport) {
	s.Helper()
	s.await("use of the receive CPUs", func() bool {
		r = s.port.Report()
		return r.ReceiveCPUs != nil && slices.Equal(r.ReceiveCPUs.CPUs, want.List)
	})
	return r
}

func TestReceiveCPUsAreUsedUntilDisabled(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	s.disableChecksumOffload()
	s.open(byUDP, "", slog.DiscardHandler)
	s.port.SetReceiveCPUs(localCPUs(t))
	if r := s.port.Report(); r.ReceiveCPUs == nil || r.ReceiveCPUs.CPUs != nil || r.ReceiveCPUs.Reason != notYet || s.attached(s.dev) != 0 {
		t.Errorf("before SetGuarded: got %+v, want non-nil", r.ReceiveCPUs)
	}
	s.port.SetGuarded()
	r := s.awaitReceiveCPUs(localCPUs(t))
	if r.Path != byUDP || r.ReceiveCPUs.Device != s.dev || r.ReceiveCPUs.Reason != "" || r.XDP != nil || s.attached(s.dev) == 0 {
		t.Errorf("%+v, of that %+v", r, r.ReceiveCPUs)
	}
	spread := programs.ClassifyCPUMap.String()
	s.await("messages through the CPUMAP", func() bool {
		s.awaitMessage("a message")
		return s.port.Report().Events[spread] > 0
	})
	before := s.port.Report().Events[spread]
	s.port.SetReceiveCPUs(config.ReceiveCPUs{})
	s.await("release of program and subscriptions", func() bool { return s.attached(s.dev) == 0 && s.listeners() == 0 })
	s.awaitMessage("a message without receive CPUs")
	if r := s.port.Report(); r.ReceiveCPUs != nil || r.Events[spread] < before {
		t.Errorf("after disabling: got %+v, want ReceiveCPUs nil, Events[spread] at least %v", r, before)
	}
	s.port.SetReceiveCPUs(localCPUs(t))
	s.awaitReceiveCPUs(localCPUs(t))
	expect.NoError(t, s.port.Close())
	if s.attached(s.dev) != 0 {
		t.Error("the program is still attached")
	}
}

func TestPartialChecksumsStayOnReceivingCPU(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	s.open(config.UnderlayAuto, "", slog.DiscardHandler)
	s.port.SetReceiveCPUs(localCPUs(t))
	s.port.SetGuarded()
	s.awaitReceiveCPUs(localCPUs(t))
	s.await("messages with partial checksums", func() bool {
		s.awaitMessage("a message")
		return s.port.Report().Events[programs.ClassifyChecksumPartial.String()] > 0
	})
	s.port.SetReceiveCPUs(config.ReceiveCPUs{Auto: true})
	s.await("the reason", func() bool {
		r := s.port.Report().ReceiveCPUs
		return r.CPUs == nil && strings.Contains(r.Reason, "checksums") && s.attached(s.dev) == 0
	})
}

func TestCPUMapKeepsFlowOrder(t *testing.T) {
	requireXDP(t)
	const messages, batch = 4000, 32
	s := newTestNet(t)
	s.disableChecksumOffload()
	s.open(byUDP, "", slog.DiscardHandler)
	s.port.SetReceiveCPUs(localCPUs(t))
	s.port.SetGuarded()
	s.awaitReceiveCPUs(localCPUs(t))
	s.awaitMessage("a message")
	in := &numbers{seen: map[uint32]bool{}}
	go func() {
		for n := range s.got {
			in.add(n)
		}
	}()
	to := netip.AddrPortFrom(hereAt.Addr(), s.port.LocalPort())
	lost := 0
	for next := uint32(10); next < messages; next += batch {
		for i := range uint32(batch) {
			_, err := s.peer.WriteToUDPAddrPort(message(index, next+i), to)
			expect.NoError(t, err)
		}
		for late := time.Now().Add(time.Second); !in.has(next + batch - 1); time.Sleep(50 * time.Microsecond) {
			if time.Now().After(late) {
				lost++ // a queue was full, which is not tested here
				break
			}
		}
	}
	if late := in.overtaken(); late > 0 || in.count() < messages/2 {
		t.Errorf("%d of %d messages were reordered (%d batches lost their last message)", late, in.count(), lost)
	}
	if n := s.port.Report().Events[programs.ClassifyCPUMap.String()]; n < uint64(in.count()/2) {
		t.Errorf("only %d of %d messages came through the CPUMAP", n, in.count())
	}
}

func TestForeignXDPProgramPreventsReceiveCPUs(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	remove := s.attachForeignProgram()
	stranger := s.attached(s.dev)
	log := &logRecorder{Handler: slog.DiscardHandler}
	s.open(byUDP, "", log)
	s.port.SetReceiveCPUs(localCPUs(t))
	s.port.SetGuarded()
	s.await("the reason", func() bool {
		r := s.port.Report().ReceiveCPUs
		return r.CPUs == nil && strings.Contains(r.Reason, "stranger")
	})
	s.await("the warning", func() bool { return log.has("WARN", "stranger") })
	if got := s.attached(s.dev); got != stranger {
		t.Errorf("program %d is attached, want %d", got, stranger)
	}
	s.awaitMessage("a message through UDP")
	remove()
	s.awaitReceiveCPUs(localCPUs(t))
}

func TestAFXDPTakesPrecedenceOverReceiveCPUs(t *testing.T) {
	s := newXDPTestNet(t)
	s.port.SetReceiveCPUs(localCPUs(t))
	s.await("the reason", func() bool {
		r := s.port.Report()
		return r.Path == byXDP && r.ReceiveCPUs.CPUs == nil && strings.Contains(r.ReceiveCPUs.Reason, "AF_XDP sockets on "+s.dev)
	})
	s.port.SetMode(byUDP)
	s.awaitReceiveCPUs(localCPUs(t))
	s.awaitMessage("a message through UDP")
	s.port.SetMode(byXDP)
	s.awaitPath(byXDP)
}

// TestProgramAcceptsMaximumReceiveCPUs: the program has a limit of its own.
func TestProgramAcceptsMaximumReceiveCPUs(t *testing.T) {
	requireXDP(t)
	c, err := programs.LoadClassify(programs.ClassifyOptions{ListenPort: 1, CPUs: make([]int, config.MaxReceiveCPUs)})
	expect.NoError(t, err)
	expect.NoError(t, c.Close())
}

func TestMissingCPUIsReported(t *testing.T) {
	requireXDP(t)
	s := newTestNet(t)
	s.open(byUDP, "", slog.DiscardHandler)
	s.port.SetReceiveCPUs(config.ReceiveCPUs{List: []int{8191}})
	s.port.SetGuarded()
	s.await("the reason", func() bool {
		r := s.port.Report().ReceiveCPUs
		return r.CPUs == nil && strings.Contains(r.Reason, "CPU 8191 does not exist") && s.attached(s.dev) == 0
	})
	s.awaitMessage("a message")
}

func TestProgramLoadFailureDisablesReceiveCPUs(t *testing.T) {
	p := &Port{wanted: xdp.Binding{Device: "eth0"}, loadFailure: loadFailure{errors.New("not permitted"), time.Now().Add(time.Hour)}}
	for reason, want := range map[string]string{"": "", "AF_XDP sockets on eth0 receive the data messages": "not permitted"} {
		now, s := p.openProgram(choice{xdp: true}, cpuSelection{reason: reason}, false)
		if now.xdp || now.reason != "not permitted" || s.reason != want {
			t.Errorf("choice %+v, CPUs %+v", now, s)
		}
	}
}
