// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

func TestReservedPortsAreNotEphemeral(t *testing.T) {
	for _, tt := range []struct {
		reserved string
		ports    []uint16
		want     string // the range of the ephemeral ones
	}{
		{"", []uint16{99, 100, 105, 110, 111}, "100-110"},
		{"\n", []uint16{103}, "103-103"},
		{"100-110\n", []uint16{100, 105, 110}, "0-0"},
		{"1,90-105,107-200", []uint16{110, 106, 100}, "106-106"},
		{"100,110", []uint16{110, 101, 100, 109}, "101-109"},
		{"", []uint16{99, 111, 0}, "0-0"},
		{"", nil, "0-0"},
	} {
		l, err := parseLocalPorts("100\t110\n", tt.reserved)
		if err != nil {
			t.Errorf("%q: got error %v, want none", tt.reserved, err)
		}
		if got := l.EphemeralRange(tt.ports).String(); got != tt.want {
			t.Errorf("%q, of %v: got %s, want %s", tt.reserved, tt.ports, got, tt.want)
		}
	}
}

func TestReserveCommandKeepsReservedPorts(t *testing.T) {
	l, err := parseLocalPorts("100 110", "7000,8000-8010\n")
	if err != nil {
		t.Fatal(err)
	}
	const want = "sysctl -w net.ipv4.ip_local_reserved_ports=7000-7000,8000-8010,61000-61063"
	if got := l.ReserveCommand(spread.Ports{First: 61000, Last: 61063}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMalformedLocalPortsAreErrors(t *testing.T) {
	for _, in := range [][2]string{{"", ""}, {"1", ""}, {"x y", ""}, {"1 70000", ""}, {"1 2", "x"}, {"1 2", "3-"}, {"1 2", "70000"}} {
		if l, err := parseLocalPorts(in[0], in[1]); err == nil {
			t.Errorf("%q: got %v", in, l)
		}
	}
}

func TestLocalPortsAreReadFromNamespace(t *testing.T) {
	enterNamespace(t)
	for path, text := range map[string]string{localPortRange: "40000 40100", localReservedPorts: "40000-40098,40100"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Skipf("needs /proc/sys/net/ipv4: %v", err)
		}
	}
	l, err := ReadLocalPorts()
	if err != nil || !l.Contains(40099) || l.Contains(40098) || l.Contains(40100) || l.Contains(40101) {
		t.Errorf("got %+v, error %v, want no error", l, err)
	}
}

// FuzzParseLocalPorts compares with a search of the list as text.
func FuzzParseLocalPorts(f *testing.F) {
	f.Add("32768 60999", "1,90-105,106-200", uint16(100))
	f.Add("1 65535", "", uint16(7))
	f.Fuzz(func(t *testing.T, local, reserved string, port uint16) {
		l, err := parseLocalPorts(local, reserved)
		if err != nil {
			return
		}
		named := slices.Contains(strings.Split(strings.TrimSpace(reserved), ","), strconv.Itoa(int(port)))
		if got := l.Contains(port); got && (named || !l.Range.Contains(port)) {
			t.Errorf("%q, %q has %d", local, reserved, port)
		}
	})
}
