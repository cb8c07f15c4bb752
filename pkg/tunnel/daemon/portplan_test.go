// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// TestPlannerLogsReasonOncePerDevice has a peer that roams over 1,000 addresses, and then errors without number.
func TestPlannerLogsReasonOncePerDevice(t *testing.T) {
	var log bytes.Buffer
	p := &planner{log: slog.New(slog.NewTextHandler(&log, nil)), logged: map[string]bool{}}
	from := netip.MustParseAddr("2001:db8::1")
	for range 1000 {
		from = from.Next()
		for _, device := range []string{"eth0", "eth1"} {
			_, err := spread.Plan(&spread.RSS{Device: device}, from, netip.MustParseAddrPort("[2001:db8::1]:51820"), spread.DefaultPorts, 0)
			p.logOnce(slog.LevelWarn, err)
		}
	}
	if lines := strings.Count(log.String(), "\n"); lines != 2 || !strings.Contains(log.String(), "eth1") {
		t.Errorf("got %d lines, want 2: %.500s", lines, log.String())
	}
	for i := range 1000 {
		p.logOnce(slog.LevelWarn, fmt.Errorf("reason %d", i))
	}
	if lines := strings.Count(log.String(), "\n"); lines != maxReasons || len(p.logged) != maxReasons {
		t.Errorf("got %d lines and %d reasons, want %d", lines, len(p.logged), maxReasons)
	}
}
