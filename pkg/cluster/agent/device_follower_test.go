// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
)

// TestFailedChangeKeepsExistingPeers: existing peers are still gathered from, and the error reports the new ones.
func TestFailedChangeKeepsExistingPeers(t *testing.T) {
	before := configsFor(map[string][]string{"eth0": {"192.0.2.2:51820"}})["eth0"]
	after := configsFor(map[string][]string{"eth0": {"192.0.2.2:51820", "192.0.2.3:51820"}})["eth0"]
	w := &deviceFollower{wanted: before, applied: before, log: slog.New(slog.DiscardHandler), changes: make(chan spreader.Change), done: make(chan struct{})}
	full := errors.New("no room")
	for _, c := range []struct {
		err    error
		gather int
	}{{full, 1}, {nil, 2}, {full, 2}} {
		go func() { (<-w.changes).Done(spreader.Report{}, c.err) }()
		err := w.change(t.Context(), after)
		if !errors.Is(err, c.err) || w.changeFailed != (err != nil) || w.gatheringPeers(after) != c.gather {
			t.Errorf("%v: failed %t, gathers from %d", err, w.changeFailed, w.gatheringPeers(after))
		}
		if err != nil && !strings.Contains(err.Error(), "new nodes are not gathered from") {
			t.Error(err)
		}
	}
}

// TestMissedGatherIsNotAnnounced has another program in front, which may accept packets, and a device that refused the programs.
func TestMissedGatherIsNotAnnounced(t *testing.T) {
	cfg := configsFor(map[string][]string{"eth0": {"192.0.2.2:51820"}})["eth0"]
	w := &deviceFollower{applied: cfg, log: slog.New(slog.DiscardHandler)}
	for _, c := range []struct {
		report spreader.Report
		want   int
	}{{want: 1}, {spreader.Report{GatherBehind: []string{"filter u32 (priority 1)"}}, 0}, {spreader.Report{NotOn: []string{"eth1"}}, 0}, {want: 1}} {
		w.logReport(c.report)
		if n := w.gatheringPeers(cfg); n != c.want {
			t.Errorf("%+v: got %d peers, want %d", c.report, n, c.want)
		}
	}
}

func TestRepeatedWarningIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	w := &deviceFollower{log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, warnings := range [][]string{{"old"}, {"old", "new"}, {"old", "new"}, {"new"}, {"old", "new"}} {
		w.logReport(spreader.Report{Warnings: warnings})
	}
	if oldCount, newCount := strings.Count(log.String(), "reason=old"), strings.Count(log.String(), "reason=new"); oldCount != 2 || newCount != 1 {
		t.Errorf("%d and %d times in\n%s", oldCount, newCount, &log)
	}
}
