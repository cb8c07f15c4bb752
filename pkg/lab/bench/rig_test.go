// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
)

const testStretch = 10 * time.Millisecond

// privileged skips where no lab can be made.
func privileged(t *testing.T) {
	t.Helper()
	if err := Probe(); errors.Is(err, netlab.ErrPrivileges) || errors.Is(err, os.ErrNotExist) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// newTestSuite is one whose namespaces are this test's alone; it checks that none is left.
func newTestSuite(t *testing.T) *suite {
	t.Helper()
	cfg := Config{Stretch: 10 * testStretch, Prefix: testPrefix(t), Daemon: func(int) Daemon { return nil }}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	return &suite{cfg: cfg}
}

// testPrefix is one that no other test uses.
func testPrefix(t *testing.T) string {
	t.Helper()
	prefix := "t" + strings.ToLower(rand.Text()[:10])
	t.Cleanup(func() {
		for _, dir := range []string{"/run/netns", "/run/ropewalk/netlab"} {
			if left, err := filepath.Glob(filepath.Join(dir, prefix+"-*")); err != nil || len(left) > 0 {
				t.Errorf("the test left %v, %v", left, err)
			}
		}
	})
	return prefix
}

func TestCryptoStageNeedsNoPrivileges(t *testing.T) {
	var seen []Progress
	r, err := Run(t.Context(), Config{
		Stages: []string{StageCrypto}, Stretch: testStretch, Progress: func(p Progress) { seen = append(seen, p) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Figures {
		if f.Error != "" || f.Value <= 0 {
			t.Errorf("%+v", f)
		}
	}
	if _, ok := r.Find(StageCrypto, "open_train"); !ok || r.Verdict != nil || r.Machine.Cores < 1 {
		t.Errorf("%+v", r)
	}
	for i, p := range seen {
		if p.Done != i || p.Total != len(seen) {
			t.Errorf("progress %d is %+v of %d", i, p, len(seen))
		}
	}
}

func TestStagesHaveToExist(t *testing.T) {
	for _, cfg := range []Config{{Stages: []string{"disk"}}, {Stages: []string{StageTunnel}}} {
		if _, err := Run(t.Context(), cfg); err == nil {
			t.Errorf("%v was run", cfg.Stages)
		}
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Run(ctx, Config{Stages: []string{StageCrypto}, Stretch: time.Hour, Progress: func(Progress) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
}

func TestTUNRatesAreTaken(t *testing.T) {
	privileged(t)
	for _, sh := range []shape{trainShape(), smallShape()} {
		write, read, err := newTestSuite(t).tunRates(t.Context(), sh, testStretch)
		if err != nil || write <= 0 || read <= 0 {
			t.Errorf("%s: %v, %v, %v", sh.name, write, read, err)
		}
	}
}

func TestUnderlayRatesAreTaken(t *testing.T) {
	privileged(t)
	for _, cfg := range []udp.Config{{}, {NoGSO: true, NoGRO: true}} {
		send, receive, err := newTestSuite(t).underlayRates(t.Context(), cfg, testStretch)
		if err != nil || send <= 0 || receive <= 0 {
			t.Errorf("%+v: %v, %v, %v", cfg, send, receive, err)
		}
	}
}

func TestUnderlayPairIsTaken(t *testing.T) {
	privileged(t)
	s := newTestSuite(t)
	if err := s.underlayPair(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f := s.report.Figures[0]; f.Error != "" || f.Value <= 0 {
		t.Errorf("%+v", f)
	}
}

func TestLabWithoutGeneratorFailsAndCleansUp(t *testing.T) {
	privileged(t)
	_, err := NewLab(t.Context(), LabConfig{Prefix: testPrefix(t), Traffic: []string{"/bin/sh", "-c", "echo no generator here; exit 3", "sh"}})
	if err == nil || !strings.Contains(err.Error(), "no generator here") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("err = %v", err)
	}
}

func TestLabReportsDaemonExitReason(t *testing.T) {
	privileged(t)
	daemon := Command("/bin/sh", "-c", "echo cannot serve $0; exit 4")
	_, err := NewLab(t.Context(), LabConfig{Prefix: testPrefix(t), Daemon: daemon})
	if err == nil || !strings.Contains(err.Error(), "cannot serve rb") || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("err = %v", err)
	}
}

func TestStopKillsChildProcesses(t *testing.T) {
	privileged(t)
	lab, err := netlab.New(testPrefix(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	h, err := lab.Host("a")
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartProcess(t.Context(), h, "/bin/sh", "-c", "sleep 1000 & echo started; wait")
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); p.Log() != "started" || len(p.PIDs()) != 2; {
		if time.Now().After(deadline) {
			t.Fatalf("log %q, processes %v", p.Log(), p.PIDs())
		}
		time.Sleep(time.Millisecond)
	}
	if err := errors.Join(p.Stop(), p.Stop(), p.Err()); err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(20 * time.Second); len(p.PIDs()) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still there: %v", p.PIDs())
		}
	}
}

func TestUnexpectedProcessExitIsAnError(t *testing.T) {
	privileged(t)
	lab, err := netlab.New(testPrefix(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	h, err := lab.Host("a")
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartProcess(t.Context(), h, "/bin/sh", "-c", "echo goodbye")
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "goodbye") {
		t.Errorf("err = %v", err)
	}
	if _, err := StartProcess(t.Context(), h); err == nil {
		t.Error("a process without a command")
	}
}

// TestFailedDaemonShutdownKeepsFigures: the report is there, and the error too.
func TestFailedDaemonShutdownKeepsFigures(t *testing.T) {
	privileged(t)
	s := newTestSuite(t)
	err := s.inLab(t.Context(), StageTunnel, LabConfig{}, func(src *labSource) error {
		net, err := netlab.New(s.cfg.Prefix)
		if err != nil {
			return err
		}
		src.lab = &Lab{net: net}
		if src.lab.A, err = newSide(net, "a", 1); err != nil {
			return err
		}
		if src.lab.A.Daemon, err = StartProcess(t.Context(), src.lab.A.Host, "/bin/sh", "-c", "echo goodbye; exit 3"); err != nil {
			return err
		}
		<-src.lab.A.Daemon.Done()
		return nil
	})
	if err != nil || len(s.endings) != 1 || !strings.Contains(s.endings[0].Error(), "goodbye") {
		t.Errorf("err = %v, endings %v", err, s.endings)
	}
}

func TestNoPingIsSentAfterTheEnd(t *testing.T) {
	privileged(t)
	net, err := netlab.New(testPrefix(t))
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{net: net}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, side := range []**Side{&l.A, &l.B} {
		if *side, err = newSide(net, string(rune('a'+i)), byte(1+i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := net.Cable(l.A.Host, l.B.Host, netlab.CableConfig{AddrsA: l.A.Cable[:], AddrsB: l.B.Cable[:]}); err != nil {
		t.Fatal(err)
	}
	if err := l.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	rtts, sent, err := l.pingUntil(t.Context(), time.Now().Add(-time.Second), 3, time.Millisecond)
	if err != nil || sent != 0 || len(rtts) != 0 {
		t.Errorf("%d sent after the end, %v, %v", sent, rtts, err)
	}
	if _, sent, err = l.pingUntil(t.Context(), time.Time{}, 3, time.Millisecond); err != nil || sent != 3 {
		t.Errorf("%d of 3 sent, %v", sent, err)
	}
}

func TestSocketGlobMatchesOnlyLabSockets(t *testing.T) {
	for name, want := range map[string]bool{"rb1a2b3a.sock": true, "rb1a2b3b.sock": true, "rw1a2b3l.sock": false, "wg0.sock": false} {
		if got, err := filepath.Match(socketGlob, name); got != want || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}
