// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

// syncBuffer is a bytes.Buffer for concurrent use.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.b.String(), text)
}

// watch runs Watch until stop or the test's end.
func (s *side) watch(every time.Duration) (reports <-chan Report, log *syncBuffer, stop func()) {
	s.r.Helper()
	return s.watchWith(s.config(), every)
}

func (s *side) watchWith(cfg Config, every time.Duration) (reports <-chan Report, log *syncBuffer, stop func()) {
	s.r.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.host.pollInterval = every
	out := make(chan Report, 100)
	log = &syncBuffer{}
	done := make(chan error, 1)
	go func() {
		done <- s.lab.Do(func() error {
			return s.host.Watch(ctx, cfg, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), func(r Report) { out <- r })
		})
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		expect.NoError(s.r, <-done)
	})
	s.r.Cleanup(stop)
	return out, log, stop
}

func (r *rig) next(reports <-chan Report) Report {
	r.Helper()
	select {
	case report := <-reports:
		return report
	case <-time.After(20 * time.Second):
		r.Fatal("no report")
	}
	return Report{}
}

func TestWatchFollowsPeers(t *testing.T) {
	r := newRig(t)
	reports, log, stop := r.here.watch(200 * time.Millisecond) // long enough for other processes to get the lock
	r.next(reports)
	program := r.here.status().Spread.Program
	r.here.finder.set(wg("192.0.2.2:51820", "198.51.100.7:4000"))
	if report := r.next(reports); len(report.Peers) != 2 {
		t.Errorf("new peer: got %+v, want len(Peers) 2", report)
	}
	r.here.finder.set(wg("192.0.2.2:51820", "198.51.100.9:61009")) // roamed, and last heard from a lane port
	if report := r.next(reports); len(report.Peers) != 2 || report.Peers[1].String() != "198.51.100.9:4000" {
		t.Errorf("roamed peer: %+v", report)
	}
	r.here.finder.set(wg("192.0.2.2:51820"))
	if report := r.next(reports); len(report.Peers) != 1 {
		t.Errorf("removed peer: got %+v, want len(Peers) 1", report)
	}
	r.here.finder.set()
	expect.Eventually(r, "trouble is logged", func() bool { return log.has("no tunnel listens") })
	r.here.finder.set(wg("192.0.2.2:51820"))
	expect.Eventually(r, "the recovery is logged", func() bool { return log.has("restored after failures") })
	stop()
	st := r.here.status()
	if st.Spread.State != "attached" || st.Spread.Program != program || len(st.Problems) > 0 {
		t.Errorf("after Watch ended: got %+v, want Spread.State \"attached\", Spread.Program %v, no Problems", st, program)
	}
	r.here.detach(0)
	r.here.clean()
}

func TestWatchRepairsReturnedDevice(t *testing.T) {
	r := newRig(t)
	// Link updates alone must repair it: the next poll is far away.
	reports, log, _ := r.here.watch(time.Hour)
	first := r.next(reports)
	r.unplug()
	expect.Eventually(r, "the loss is logged", func() bool { return log.has("no such device") })
	r.plug()
	if again := r.next(reports); !slices.Equal(again.Lanes, first.Lanes) {
		t.Errorf("got %+v, want Lanes %v", again, first.Lanes)
	}
	if st := r.here.status(); st.Spread.State != "attached" || len(st.Problems) > 0 {
		t.Errorf("got status %+v, want Spread.State \"attached\", no Problems", st)
	}
}

func TestStoppedWatchLogsNoSubscriptionFailure(t *testing.T) {
	r := newRig(t)
	reports, log, stop := r.here.watch(time.Hour)
	r.next(reports)
	stop()
	if log.has("subscription") {
		t.Errorf("got log %s, want nothing about the subscription", log.b.String())
	}
}

func TestWatchReattachesDetachedPrograms(t *testing.T) {
	r := newRig(t)
	reports, _, _ := r.here.watch(200 * time.Millisecond) // long enough for other processes to get the lock
	r.next(reports)
	r.here.detach(0) // Watch attaches again
	r.next(reports)
	if st := r.here.status(); st == nil || st.Spread.State != "attached" {
		t.Errorf("unexpected status: %+v", st)
	}
}

// TestWatchEndsWhenAnotherVersionAttaches: its maps have another layout, so this version can neither fill them nor take the programs away from it.
func TestWatchEndsWhenAnotherVersionAttaches(t *testing.T) {
	r := newRig(t)
	r.here.host.pollInterval = 200 * time.Millisecond // long enough for other processes to get the lock
	reports, done := make(chan Report, 10), make(chan error, 1)
	go func() {
		done <- r.here.lab.Do(func() error {
			return r.here.host.Watch(t.Context(), r.here.config(), slog.New(slog.DiscardHandler), func(r Report) { reports <- r })
		})
	}()
	r.next(reports)
	program := r.here.status().Spread.Program
	shared := filepath.Join(filepath.Dir(r.here.dir()), sharedPin)
	expect.NoError(t, os.Rename(filepath.Join(shared, "state-8"), filepath.Join(shared, "state-9")))
	select {
	case err := <-done:
		if !errors.Is(err, programs.ErrOtherLayout) {
			t.Errorf("got error %v, want %v", err, programs.ErrOtherLayout)
		}
	case <-time.After(20 * time.Second):
		t.Error("Watch goes on")
	}
	if got := r.here.status().Spread.Program; got != program {
		t.Errorf("program %d was replaced by %d", program, got)
	}
}

// TestAttachRemovesMapsOfOtherLayouts: by their absence a process of another version sees that its programs were replaced.
func TestAttachRemovesMapsOfOtherLayouts(t *testing.T) {
	r := newRig(t)
	r.here.attach(r.here.config())
	var old []string
	for _, dir := range []string{filepath.Join(filepath.Dir(r.here.dir()), sharedPin), filepath.Join(r.here.dir(), statePin)} {
		old = append(old, filepath.Join(dir, "state-1"))
		expect.NoError(t, os.Rename(filepath.Join(dir, "state-8"), filepath.Join(dir, "state-1")))
	}
	r.here.host.beforeStep = func(string) error { return errors.New("refused") }
	if _, err := r.here.try(r.here.config()); err == nil {
		t.Error("attach succeeded")
	}
	for _, dir := range old {
		if _, err := os.Lstat(dir); err != nil {
			t.Errorf("after a failure: %v", err)
		}
	}
	r.here.host.beforeStep = nil
	r.here.attach(r.here.config())
	for _, dir := range old {
		if _, err := os.Lstat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}

func TestWatchReturnsFirstAttachError(t *testing.T) {
	r := newRig(t)
	r.here.finder.set()
	err := r.here.lab.Do(func() error {
		return r.here.host.Watch(t.Context(), r.here.config(), slog.New(slog.DiscardHandler), func(Report) { t.Error("attached") })
	})
	if !errors.Is(err, ErrNoTunnel) {
		t.Errorf("unexpected error: %v", err)
	}
	r.here.clean()
}

// TestWatchKeepsPollingWithoutLinkUpdates: the subscription ends when the netlink socket overruns.
func TestWatchKeepsPollingWithoutLinkUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		w := &watcher{host: &Host{pollInterval: time.Hour}}
		updates := make(chan netlink.LinkUpdate)
		close(updates)
		go w.run(ctx, updates)
		synctest.Wait()
		cancel()
		synctest.Wait()
		for range 3 {
			if w.schedule(0, false); w.wait != time.Hour {
				t.Errorf("next poll in %v, want 1 h", w.wait)
			}
		}
	})
}

// stallingFinder has a peer with which a handshake completes a second after the last, and from which nothing arrives, until it is restarted.
type stallingFinder struct {
	mu       sync.Mutex
	calls    int
	restarts []string
	failures int  // of the additions
	removed  bool // the peer is not there
}

func (f *stallingFinder) Tunnels() ([]Tunnel, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	t := wg(netip.AddrPortFrom(thereAddr, port).String())
	if f.removed {
		t.Peers = nil
		return []Tunnel{t}, nil
	}
	t.Peers[0].LastHandshake = time.Unix(int64(1000+f.calls), 0)
	t.Peers[0].SentBytes = uint64(f.calls) << 20
	if len(f.restarts) > 0 {
		t.Peers[0].ReceivedBytes = uint64(f.calls) << 20
	}
	return []Tunnel{t}, nil
}

func (f *stallingFinder) RestartPeer(tunnel, key string) (retry func() error, err error) {
	f.mu.Lock()
	f.restarts = append(f.restarts, tunnel+" "+key)
	f.mu.Unlock()
	add := func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.failures--
		if f.removed = f.failures >= 0; f.removed {
			return syscall.ENOMEM
		}
		return nil
	}
	return add, add()
}

func TestWatchAddsRemovedPeerLater(t *testing.T) {
	r := newRig(t)
	f := &stallingFinder{failures: 2}
	r.here.host.Tunnels = f
	cfg := r.here.config()
	cfg.RestartStalledPeers = true
	reports, log, _ := r.here.watchWith(cfg, 100*time.Millisecond)
	r.next(reports)
	expect.Eventually(t, "the peer is added again", func() bool { return log.has("added again after failures") })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed || !slices.Equal(f.restarts, []string{"wg0 a"}) || !log.has("retrying") {
		t.Errorf("the peer is gone (%v), was restarted as %q, want once, or no failure was logged", f.removed, f.restarts)
	}
}

func TestWatchReportsAndRestartsStalledPeer(t *testing.T) {
	r := newRig(t)
	f := &stallingFinder{}
	r.here.host.Tunnels = f
	reports, log, stop := r.here.watch(100 * time.Millisecond)
	r.next(reports)
	expect.Eventually(t, "the status has the peer", func() bool {
		st := r.here.status()
		return st.Tunnels[0].Peers[0].Stalled && slices.ContainsFunc(st.Problems, func(p string) bool { return strings.Contains(p, "CVE-2026-52945") })
	})
	if !log.has("receives nothing but handshakes") || len(f.restarts) > 0 {
		t.Errorf("the log has no warning, or the peer was restarted: %q", f.restarts)
	}
	stop()
	cfg := r.here.config()
	cfg.RestartStalledPeers = true
	reports, log, _ = r.here.watchWith(cfg, 100*time.Millisecond)
	r.next(reports)
	expect.Eventually(t, "the restart is logged", func() bool { return log.has("restarted a stalled peer") })
	expect.Eventually(t, "the status has no stalled peer", func() bool { return !r.here.status().Tunnels[0].Peers[0].Stalled })
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.restarts, []string{"wg0 a"}) {
		t.Errorf("restarted %q, want one peer once", f.restarts)
	}
}

func TestWatchBacksOffOnIdleTunnel(t *testing.T) {
	w := &watcher{interval: time.Second, wait: time.Second}
	for _, step := range []struct {
		name    string
		traffic uint64
		busy    bool
		want    time.Duration
	}{
		{"has carried much", 1 << 30, false, 1},
		{"idle", 1 << 30, false, 2},
		{"keepalives", 1<<30 + 1000, false, 4},
		{"idle", 1<<30 + 1000, false, 8},
		{"idle", 1<<30 + 1000, false, 12},
		{"idle", 1<<30 + 1000, false, 12},
		{"something was repaired", 1<<30 + 1000, true, 1},
		{"idle", 1<<30 + 1000, false, 2},
		{"used", 1<<30 + 1<<20, false, 1},
		{"idle", 1<<30 + 1<<20, false, 2},
		{"a peer was removed, and its count with it", 5, false, 1},
		{"no longer there", 0, true, 1},
	} {
		if w.schedule(step.traffic, step.busy); w.wait != step.want*time.Second {
			t.Errorf("%s: next poll in %v, want %d s", step.name, w.wait, step.want)
		}
	}
}

// TestWatchFollowsAddresses: messages from an address that the host has got since then are spread, those from one that it lost are not.
func TestWatchFollowsAddresses(t *testing.T) {
	r := newRig(t)
	reports, _, _ := r.here.watch(time.Hour)
	r.next(reports)
	extra := netip.MustParsePrefix("192.0.2.77/32")
	pins, err := filepath.Glob(r.fs + "/ropewalk/spread/*/%shared/*/addresses")
	if err != nil || len(pins) != 1 {
		t.Fatalf("got pins %q, error %v, want one", pins, err)
	}
	m, err := ebpf.LoadPinnedMap(pins[0], nil)
	expect.NoError(t, err)
	defer m.Close()
	has := func(want bool) func() bool {
		return func() bool {
			key, value := extra.Addr().As16(), uint8(0)
			return (m.Lookup(&key, &value) == nil) == want
		}
	}
	r.here.do(func() error { return hostnet.AddAddress(r.here.device, extra) })
	expect.Eventually(t, "the new address is known", has(true))
	r.here.do(func() error { return hostnet.RemoveAddress(r.here.device, extra) })
	expect.Eventually(t, "the removed address is forgotten", has(false))
}
