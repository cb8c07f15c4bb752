// SPDX-License-Identifier: Apache-2.0

package measurement

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// times is a Comparison in which AF_XDP has those multiples of what UDP sockets have.
func times(gbps, ns float64) Comparison {
	return Comparison{UDP: Cost{10, 500}, XDP: Cost{10 * gbps, 500 * ns}}
}

func TestGainsCountOnlyWithoutLosses(t *testing.T) {
	for _, test := range []struct {
		gbps, ns float64
		want     bool
	}{
		{1, 1, false},
		{1.04, 0.96, false},
		{1.06, 1, true},
		{1, 0.94, true},
		{1.5, 0.5, true},
		{0.99, 0.9, true},  // within noise
		{1.1, 1.01, true},  // within noise
		{0.97, 0.5, false}, // cheaper, but slower
		{1.5, 1.03, false}, // faster, but dearer
		{0.5, 2, false},
		{math.NaN(), 1, false},
	} {
		c := times(test.gbps, test.ns)
		if got := c.Better(); got != test.want {
			t.Errorf("%v: got %v, want %v", &c, got, test.want)
		}
	}
}

func TestBothKindsMustBeBetter(t *testing.T) {
	better, worse := times(1.2, 0.9), times(0.9, 1.2)
	for _, test := range []struct {
		datagrams, trains Comparison
		want              bool
	}{{better, better, true}, {better, worse, false}, {worse, better, false}, {worse, worse, false}} {
		r := Result{Datagrams: test.datagrams, Trains: test.trains}
		if got := r.Better(); got != test.want {
			t.Errorf("%v: got %v, want %v", &r, got, test.want)
		}
	}
}

// loopback is a Result for lo under its present conditions. Every namespace has lo.
func loopback(t *testing.T) *Result {
	t.Helper()
	c, err := ReadConditions("lo")
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("needs a loopback device that names its driver")
	}
	expect.NoError(t, err)
	return &Result{
		Device: "lo", Conditions: c, Mode: Copy, Datagrams: times(1.2, 0.9), Trains: times(1.1, 1),
		Time: time.Unix(1e9, 0).UTC(), Version: "v1", Command: "ropewalk bench underlay lo",
	}
}

func TestSavedResultIsLoaded(t *testing.T) {
	dir, want := filepath.Join(t.TempDir(), "new"), loopback(t)
	if Exists(dir) {
		t.Error("a result exists before the first was saved")
	}
	expect.NoError(t, Save(dir, want))
	expect.NoError(t, Save(dir, want)) // replaces
	if !Exists(dir) {
		t.Error("no result exists")
	}
	got, err := Load(dir, "lo")
	expect.NoError(t, err)
	if d := cmp.Diff(*want, got); d != "" {
		t.Error(d)
	}
	list, err := os.ReadDir(dir)
	expect.NoError(t, err)
	if st, err := os.Stat(Path(dir, "lo")); err != nil || st.Mode().Perm() != 0o644 || len(list) != 1 {
		t.Errorf("%v, %v, %d files, want mode 644 and one file", st, err, len(list))
	}
	bad := *want
	bad.Trains.XDP.Gbps = 0
	if err := Save(dir, &bad); err == nil {
		t.Error("saved a figure of 0")
	}
}

func TestChangedConditionsMakeResultStale(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Conditions)
		want   string
	}{
		"driver":         {func(c *Conditions) { c.Driver = "ice" }, "driver ice ("},
		"driver version": {func(c *Conditions) { c.DriverVersion = "1.2" }, `(version "1.2",`},
		"firmware":       {func(c *Conditions) { c.Firmware = "4.5" }, `firmware "4.5",`},
		"place":          {func(c *Conditions) { c.Bus = "0000:03:00.0" }, `bus address "0000:03:00.0")`},
		"other device":   {func(c *Conditions) { c.MAC = "02:00:00:00:00:01" }, `hardware address "02:00:00:00:00:01",`},
		"kernel":         {func(c *Conditions) { c.Kernel = "5.4.0" }, "kernel 5.4.0,"},
		"queues":         {func(c *Conditions) { c.Queues = 64 }, "receive queues 64,"},
	} {
		dir, r := t.TempDir(), loopback(t)
		now := r.Conditions.String()
		test.change(&r.Conditions)
		expect.NoError(t, Save(dir, r))
		if _, err := Load(dir, "lo"); !errors.Is(err, ErrStale) || !strings.Contains(err.Error(), test.want) || !strings.HasSuffix(err.Error(), "now "+now) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestUnusableFilesAreRefused(t *testing.T) {
	good := `"device":"lo","mode":"copy","datagrams":{"udp":{"gbps":1,"ns_per_packet":1},"xdp":{"gbps":1,"ns_per_packet":1}}`
	head := `{"apiVersion":"ropewalk/v1","kind":"UnderlayMeasurement",`
	write := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o644) }
	}
	for name, test := range map[string]struct {
		file func(path string) error
		want string
	}{
		"none":           {func(string) error { return nil }, ErrNone.Error() + " on lo"},
		"empty":          {write(""), "unexpected end"},
		"no JSON":        {write("x"), "invalid character"},
		"null":           {write("null"), `got "" ""`},
		"of another":     {write(`{"apiVersion":"ropewalk/v1","kind":"UnderlayMeasurement","device":"eth0"}`), `of device "eth0"`},
		"another kind":   {write(`{"apiVersion":"ropewalk/v1","kind":"DoctorUndo","device":"lo"}`), `"DoctorUndo"`},
		"another schema": {write(`{"apiVersion":"ropewalk/v2","kind":"UnderlayMeasurement","device":"lo"}`), `"ropewalk/v2"`},
		"no mode":        {write(head + `"device":"lo"}`), `AF_XDP mode ""`},
		"no figures":     {write(head + good + "}"), "figure 0"},
		"negative":       {write(head + strings.Replace(good, `"gbps":1`, `"gbps":-1`, 1) + "}"), "figure -1"},
		"too long":       {write(strings.Repeat(" ", maxSize+1)), "at most 65536 bytes"},
		"a directory":    {func(path string) error { return os.Mkdir(path, 0o755) }, "regular file"},
		"a pipe":         {func(path string) error { return unix.Mkfifo(path, 0o644) }, "regular file"},
		"a link":         {func(path string) error { return os.Symlink("/dev/zero", path) }, "too many levels"},
	} {
		dir := t.TempDir()
		expect.NoError(t, test.file(Path(dir, "lo")))
		if r, err := Load(dir, "lo"); err == nil || !strings.Contains(err.Error(), test.want) || errors.Is(err, ErrNone) != (name == "none") {
			t.Errorf("%s: got %+v, %v, want %q", name, r, err, test.want)
		}
	}
	if _, err := Load(t.TempDir(), "../lo"); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("a path in place of a name: got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"ropewalk/v1","kind":"UnderlayMeasurement","device":"lo","mode":"copy"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parse(b, "lo"); err == nil && r.check() != nil {
			t.Error("accepted what a measurement cannot make")
		}
	})
}
