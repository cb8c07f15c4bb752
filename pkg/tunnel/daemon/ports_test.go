// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/test/namespace"
)

func TestSpreadPortsInLocalPortRangeAreLogged(t *testing.T) {
	namespace.EnterWithMounts(t)
	for _, tt := range []struct {
		local, reserved string
		warn            bool
	}{
		{"32768 60999", "", false},
		{"32768 61010", "", true},
		{"32768 61010", "61000-61009", true},
		{"32768 61010", "61000-61010", false},
	} {
		for name, text := range map[string]string{"ip_local_port_range": tt.local, "ip_local_reserved_ports": tt.reserved + "\n"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(text), 0o600); err != nil {
				t.Skip("needs /proc/sys/net/ipv4: ", err)
			}
		}
		var b bytes.Buffer
		warnOfLocalPorts(slog.New(slog.NewTextHandler(&b, nil)), spread.DefaultPorts)
		if got := strings.Contains(b.String(), "ip_local_reserved_ports="); got != tt.warn {
			t.Errorf("%+v: got %q", tt, b.String())
		}
	}
}
