// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/ebpf/spreader"
	"github.com/ropewalk/ropewalk/pkg/observe/top"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// sampleAt is one of a tunnel with 50 peers that carries 1 MB/s.
func sampleAt(n int) top.Sample {
	s := top.Sample{At: time.Unix(int64(n), 0), Interface: "wg0", Stats: device.Stats{Up: true}}
	s.Stats.Lanes = []engine.LaneStats{{RxBytes: uint64(n) * 1e6}, {TxBytes: uint64(n)}}
	for i := range 50 {
		s.Peers = append(s.Peers, top.PeerCounters{PublicKey: fmt.Sprintf("peer%02d", i), RxBytes: uint64(n * (i + 1))})
	}
	return s
}

// screens compares successive samples, one second apart.
func screens() func(bool) (Screen, error) {
	n, last := 0, top.Sample{}
	return func(bool) (Screen, error) {
		n++
		before := last
		last = sampleAt(n)
		return top.Compare(&before, &last), nil
	}
}

func fresh(t *testing.T) *model {
	t.Helper()
	next := screens()
	first, _ := next(false)
	m := newModel(Config{Next: next, Interval: time.Second}, first)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	m.Update(m.sample())
	return m
}

// press is what a terminal sends for a key that String names so.
func press(t *testing.T, m *model, keys ...string) tea.Cmd {
	t.Helper()
	special := map[string]tea.KeyPressMsg{
		"tab": {Code: tea.KeyTab}, "up": {Code: tea.KeyUp}, "down": {Code: tea.KeyDown}, "esc": {Code: tea.KeyEscape},
		"pgdown": {Code: tea.KeyPgDown}, "pgup": {Code: tea.KeyPgUp}, "home": {Code: tea.KeyHome}, "end": {Code: tea.KeyEnd},
		"space": {Code: tea.KeySpace, Text: " "}, "ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "ctrl+z": {Code: 'z', Mod: tea.ModCtrl}, "right": {Code: tea.KeyRight},
	}
	var cmd tea.Cmd
	for _, key := range keys {
		msg, ok := special[key]
		if !ok {
			msg = tea.KeyPressMsg{Code: rune(key[0]), Text: key}
		}
		if msg.String() != key {
			t.Fatalf("the key %q is called %q", key, msg.String())
		}
		_, cmd = m.Update(msg)
	}
	return cmd
}

func screen(m *model) string { return m.View().Content }

func TestKeysMatchHelp(t *testing.T) {
	for _, tt := range []struct{ keys, want string }{
		{"", "overview  1.0 s"},
		{"tab", "peers"},
		{"tab tab", "lanes"},
		{"right right right right", "drops"},
		{"tab tab tab tab tab", "flows"},
		{"tab tab tab tab tab tab", "overview"},
		{"1", "overview"},
		{"2", "peers"},
		{"3", "MESSAGES PER BATCH"},
		{"4", "queues"},
		{"5", "no drops"},
		{"6", "no flows"},
		{"?", "this help"},
		{"h", "this help"},
		{"3 ? ?", "lanes  1.0 s"},
		{"3 ? esc", "lanes  1.0 s"},
		{"? tab", "overview"},
		{"esc", "overview"},
		{"s", "by rate"},
		{"s s", "by rx"},
		{"s s s", "by tx"},
		{"s s s s", "by name"},
		{"s s s s s", "overview  1.0 s"},
		{"2", "peer49"},
		{"2 r", "peer00"},
		{"2 end", "peer00"},
		{"2 G", "peer00"},
		{"2 end home", "peer49"},
		{"2 pgdown", "peer30"},
		{"2 pgdown pgup", "peer49"},
		{"space", "PAUSED"},
		{"p", "PAUSED"},
		{"p p", "1.0 s"},
		{"x", "overview"},
		{"up", "overview"},
		{"down", "overview"},
	} {
		m := fresh(t)
		press(t, m, strings.Fields(tt.keys)...)
		if got := screen(m); !strings.Contains(got, tt.want) {
			t.Errorf("%q does not lead to %q:\n%s", tt.keys, tt.want, got)
		}
	}
}

func TestDeviceHasOneView(t *testing.T) {
	device := &spreader.DeviceFlows{DeviceStatus: spreader.DeviceStatus{Device: "eth0"}}
	next := func(bool) (Screen, error) { return top.CompareSpread(nil, device), nil }
	m := newModel(Config{Next: next, Interval: time.Second}, top.CompareSpread(nil, device))
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	m.Update(m.sample())
	want := screen(m)
	if !strings.HasPrefix(want, "eth0  0 flows sending") || strings.Contains(want, "tab view") {
		t.Errorf("got:\n%s", want)
	}
	for _, keys := range []string{"tab", "1", "3", "? ?", "? esc", "space space"} {
		if press(t, m, strings.Fields(keys)...); screen(m) != want {
			t.Errorf("after %q:\n%s", keys, screen(m))
		}
	}
	if press(t, m, "?"); !strings.Contains(screen(m), "port while a peer is paused") {
		t.Errorf("help:\n%s", screen(m))
	}
}

func TestScrollingStopsAtTheEnds(t *testing.T) {
	m := fresh(t)
	press(t, m, "2", "up", "k", "pgup")
	top := screen(m)
	if press(t, m, "home", "g"); screen(m) != top || m.options.Scroll != 0 {
		t.Errorf("above the top:\n%s", screen(m))
	}
	press(t, m, "end")
	bottom := screen(m)
	if press(t, m, "down", "j", "pgdown"); screen(m) != bottom {
		t.Errorf("below the bottom:\n%s", screen(m))
	}
	if press(t, m, "up"); screen(m) == bottom {
		t.Error("one line up from the bottom nothing changes")
	}
}

func TestQuittingKeysQuit(t *testing.T) {
	for _, key := range []string{"q", "ctrl+c"} {
		cmd := press(t, fresh(t), key)
		if cmd == nil {
			t.Fatalf("%s does nothing", key)
		}
		if _, ok := cmd().(tea.QuitMsg); !ok {
			t.Errorf("%s does not quit", key)
		}
	}
}

func TestCtrlZSuspends(t *testing.T) {
	cmd := press(t, fresh(t), "ctrl+z")
	if cmd == nil {
		t.Fatal("ctrl+z does nothing")
	}
	if _, ok := cmd().(tea.SuspendMsg); !ok {
		t.Error("ctrl+z does not suspend")
	}
}

func TestIntervalsStayInBounds(t *testing.T) {
	m := fresh(t)
	for range 20 {
		press(t, m, "+")
	}
	if m.interval != MinInterval {
		t.Errorf("the shortest interval is %s", m.interval)
	}
	for range 20 {
		press(t, m, "-")
	}
	if m.interval != MaxInterval {
		t.Errorf("the longest interval is %s", m.interval)
	}
}

func TestPauseKeepsScreenAndResumesWithLastInterval(t *testing.T) {
	m := fresh(t)
	press(t, m, "space")
	before := screen(m)
	for range 3 {
		m.Update(m.sample())
	}
	if screen(m) != before {
		t.Errorf("a paused screen changed:\n%s", screen(m))
	}
	press(t, m, "space")
	m.Update(m.sample())
	if got := screen(m); !strings.Contains(got, "1.0 s") || !strings.Contains(got, "8.00 Mb/s") {
		t.Errorf("after the pause:\n%s", got)
	}
}

func TestFailedSampleIsShownAndRetried(t *testing.T) {
	m := fresh(t)
	_, cmd := m.Update(sampled{err: errors.New("the daemon\x1b[2J is gone")})
	if got := screen(m); !strings.Contains(got, "the daemon?[2J is gone") || !strings.Contains(got, "8.00 Mb/s") {
		t.Errorf("with an error:\n%s", got)
	}
	if cmd == nil {
		t.Error("no further sample is due")
	}
	m.Update(m.sample())
	if got := screen(m); strings.Contains(got, "gone") || !strings.Contains(got, "q quit") {
		t.Errorf("after the error:\n%s", got)
	}
}

func TestScreenFollowsTerminalSize(t *testing.T) {
	m := fresh(t)
	for _, size := range [][2]int{{80, 24}, {40, 10}, {200, 60}, {1, 1}} {
		m.Update(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		lines := strings.Split(screen(m), "\n")
		if len(lines) > size[1] {
			t.Errorf("%v: got %d lines, want at most %d", size, len(lines), size[1])
		}
		for _, l := range lines {
			if len([]rune(l)) > size[0] {
				t.Errorf("%v: got %q", size, l)
			}
		}
	}
}

// terminal is an output that tells when it has seen a text.
type terminal struct {
	mu   sync.Mutex
	text bytes.Buffer
	want string
	seen chan struct{}
	once sync.Once
}

func (o *terminal) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	if strings.Contains(o.text.String(), o.want) {
		o.once.Do(func() { close(o.seen) })
	}
	return len(p), nil
}

func TestRunEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out := &terminal{want: "\x1b[?1049h", seen: make(chan struct{})} // the alternate screen
	in, keys := io.Pipe()
	defer keys.Close()
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Config{
			Next: screens(), Interval: MinInterval, In: in, Out: out, Env: []string{"TERM=xterm"},
		})
	}()
	<-out.seen
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if text := out.text.String(); !strings.Contains(text, "\x1b[?1049l") {
		t.Errorf("the terminal is not as it was: got %q, want %q in it", text, "\x1b[?1049l")
	}
}

func TestRunFailsWhenFirstSampleFails(t *testing.T) {
	want := errors.New("nobody")
	err := Run(t.Context(), Config{Next: func(bool) (Screen, error) { return nil, want }})
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}
