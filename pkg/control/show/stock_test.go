// SPDX-License-Identifier: Apache-2.0

package show_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

func selected(t *testing.T, st config.Status, sel show.Selector, withName bool) string {
	t.Helper()
	var b bytes.Buffer
	if err := show.Select(&b, st, sel, withName, show.Options{ZoneName: zoneName}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func pretty(t *testing.T, opt show.Options, devices ...config.Status) string {
	t.Helper()
	var b bytes.Buffer
	if err := show.Pretty(&b, devices, opt); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestSelectorsMatchStockWG(t *testing.T) {
	var dev uapitest.Device
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	uapitest.Serve(t, dir, "show0", &dev)
	r := rand.New(rand.NewPCG(1, 2))
	for range 6 {
		st := uapitest.RandomStatus(r, "show0", time.Now())
		dev.SetStatus(st)
		for _, sel := range show.Selectors() {
			if diff := cmp.Diff(wg.Run(t, "", nil, "show", "show0", string(sel)).Stdout, selected(t, st, sel, false)); diff != "" {
				t.Fatalf("show0 %s (-wg +ropewalk):\n%s", sel, diff)
			}
			if diff := cmp.Diff(wg.Run(t, "", nil, "show", "all", string(sel)).Stdout, selected(t, st, sel, true)); diff != "" {
				t.Fatalf("all %s (-wg +ropewalk):\n%s", sel, diff)
			}
		}
	}
}

func TestPrettyMatchesStockWG(t *testing.T) {
	var dev uapitest.Device
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	uapitest.Serve(t, dir, "show0", &dev)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 60 {
		color, keys := i%2 == 0, i%3 == 0
		st := uapitest.RandomStatus(r, "show0", time.Now())
		dev.SetStatus(st)
		env := []string{"WG_COLOR_MODE=never", "WG_HIDE_KEYS=always"}
		if color {
			env[0] = "WG_COLOR_MODE=always"
		}
		if keys {
			env[1] = "WG_HIDE_KEYS=never"
		}
		from := time.Now()
		want := wg.Run(t, "", env, "show").Stdout
		if !matchesAtSomeTime(t, want, from, time.Now(), show.Options{Color: color, ShowKeys: keys, ZoneName: zoneName}, st) {
			got := pretty(t, show.Options{Color: color, ShowKeys: keys, ZoneName: zoneName, Now: from}, st)
			t.Fatalf("no match for any second of the run (-wg +ropewalk):\n%s", cmp.Diff(want, got))
		}
	}
}

// matchesAtSomeTime compares wg's output with that for each second in which wg may have read the clock.
func matchesAtSomeTime(t *testing.T, want string, from, to time.Time, opt show.Options, devices ...config.Status) bool {
	t.Helper()
	for sec := from.Unix(); sec <= to.Unix(); sec++ {
		opt.Now = time.Unix(sec, 0)
		if pretty(t, opt, devices...) == want {
			return true
		}
	}
	return false
}

func TestSeveralDevicesMatchStockWG(t *testing.T) {
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	r := rand.New(rand.NewPCG(5, 6))
	devices := map[string]config.Status{}
	for _, name := range []string{"a0", "b0"} {
		var dev uapitest.Device
		devices[name] = uapitest.RandomStatus(r, name, time.Now().Add(-time.Hour*9000))
		dev.SetStatus(devices[name])
		uapitest.Serve(t, dir, name, &dev)
	}
	from := time.Now()
	want := wg.Run(t, "", nil, "show").Stdout
	opt := show.Options{ZoneName: zoneName}
	to := time.Now()
	// wg lists interfaces in directory order.
	if !matchesAtSomeTime(t, want, from, to, opt, devices["a0"], devices["b0"]) &&
		!matchesAtSomeTime(t, want, from, to, opt, devices["b0"], devices["a0"]) {
		t.Errorf("wg printed:\n%s", want)
	}
	for _, names := range [][]string{nil, {"a0"}, {"a0", "b0"}} {
		var b bytes.Buffer
		if err := show.Interfaces(&b, names); err != nil {
			t.Fatal(err)
		}
		want := map[int]string{0: "", 1: "a0\n", 2: "a0 b0\n"}[len(names)]
		if b.String() != want {
			t.Errorf("Interfaces(%v) = %q, want %q", names, b.String(), want)
		}
	}
}

func TestGoldenSampleMatchesStockWG(t *testing.T) {
	var dev uapitest.Device
	dir := uapitest.NewDir(t)
	wg := uapitest.NewStock(t, dir)
	uapitest.Serve(t, dir, "wg0", &dev)
	st := sample()
	age := time.Since(now)
	for i := range st.Peers {
		if p := &st.Peers[i]; !p.LastHandshake.IsZero() {
			p.LastHandshake = p.LastHandshake.Add(age).Truncate(time.Second)
		}
	}
	dev.SetStatus(st)
	from := time.Now()
	want := wg.Run(t, "", []string{"WG_COLOR_MODE=always", "WG_HIDE_KEYS=never"}, "show").Stdout
	if !matchesAtSomeTime(t, want, from, time.Now(), show.Options{Color: true, ShowKeys: true, ZoneName: zoneName}, st) {
		t.Errorf("wg printed:\n%s", want)
	}
}
