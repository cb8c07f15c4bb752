// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
)

const testStretch = 10 * time.Millisecond

// privileged skips where no lab can be made.
func privileged(t *testing.T) {
	t.Helper()
	if err := testbed.Probe(); errors.Is(err, netlab.ErrPrivileges) || errors.Is(err, os.ErrNotExist) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// newTestSuite is one whose namespaces are this test's alone; it checks that none is left.
func newTestSuite(t *testing.T) *suite {
	t.Helper()
	cfg := Config{Stretch: 10 * testStretch, Prefix: netlabtest.Prefix(t), Daemon: func(int) testbed.Daemon { return nil }}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	return &suite{cfg: cfg}
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
	if r.Find(StageCrypto, "open_train") == nil || r.Verdict != nil || r.Machine.Cores < 1 {
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

// TestFailedShutdownKeepsFigures: the report is there, and the error too.
func TestFailedShutdownKeepsFigures(t *testing.T) {
	privileged(t)
	s := newTestSuite(t)
	s.cfg.Traffic = []string{"/bin/sh", "-c", "trap 'echo goodbye; exit 3' TERM; echo listening on; sleep 1000 & wait", "sh"}
	err := s.inLab(t.Context(), StageRaw, testbed.Config{}, func(src *labSource) error {
		_, err := src.get(t.Context())
		return err
	})
	if err != nil || len(s.endings) != 1 || !strings.Contains(s.endings[0].Error(), "goodbye") {
		t.Errorf("err = %v, endings %v", err, s.endings)
	}
}
