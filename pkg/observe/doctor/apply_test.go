// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// fakeSettings keep settings in memory.
type fakeSettings struct {
	scope   Scope
	values  map[string]string // by Change.Setting
	refuses string            // a setting that cannot be written
	ignores string            // a setting that ignores writes
}

func (h *fakeSettings) Scope() (Scope, error) { return h.scope, nil }

func (h *fakeSettings) Read(c Change) (string, error) {
	v, ok := h.values[c.Setting()]
	if !ok {
		return "", fs.ErrNotExist
	}
	return v, nil
}

func (h *fakeSettings) Write(c Change, value string) error {
	if h.refuses == c.Setting() {
		return unix.EPERM
	}
	if h.ignores != c.Setting() {
		h.values[c.Setting()] = value
	}
	return nil
}

var (
	jit     = Change{Kind: Sysctl, Target: "net/core/bpf_jit_enable", Before: "0", After: "1"}
	backlog = Change{Kind: Sysctl, Target: "net/core/netdev_max_backlog", Before: "300", After: "1000"}
	list    = Change{Kind: Offload, Target: "eth0", Key: featureList, Before: "on", After: "off"}
)

func newSettings() *fakeSettings {
	return &fakeSettings{
		scope:  Scope{Boot: "boot", Network: "net:[1]"},
		values: map[string]string{jit.Setting(): "0", backlog.Setting(): "300", list.Setting(): "on"},
	}
}

func recordPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "lib", "undo.json")
}

func TestUndoRestoresAppliedChanges(t *testing.T) {
	h, path := newSettings(), recordPath(t)
	before := maps.Clone(h.values)
	made, err := Apply(h, path, []Change{jit, backlog, list})
	if err != nil || len(made) != 3 {
		t.Fatalf("got changes %v, error %v, want length 3, no error", made, err)
	}
	want := map[string]string{jit.Setting(): "1", backlog.Setting(): "1000", list.Setting(): "off"}
	if diff := cmp.Diff(want, h.values); diff != "" {
		t.Error(diff)
	}
	outcomes, err := Undo(h, path)
	if err != nil || len(outcomes) != 3 || outcomes[0].Change != list {
		t.Errorf("outcomes %v, %v: want the last change first", outcomes, err)
	}
	if diff := cmp.Diff(before, h.values); diff != "" {
		t.Error(diff)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the record is still there: got error %v, want %v", err, fs.ErrNotExist)
	}
	if _, err := Undo(h, path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("undoing twice: got error %v, want %v", err, fs.ErrNotExist)
	}
}

func TestUndoRestoresValuesBeforeFirstApply(t *testing.T) {
	h, path := newSettings(), recordPath(t)
	if _, err := Apply(h, path, []Change{backlog}); err != nil {
		t.Fatal(err)
	}
	if _, err := Apply(h, path, []Change{{Kind: Sysctl, Target: backlog.Target, Before: "1000", After: "3000"}, jit}); err != nil {
		t.Fatal(err)
	}
	if _, err := Undo(h, path); err != nil {
		t.Fatal(err)
	}
	if h.values[backlog.Setting()] != "300" || h.values[jit.Setting()] != "0" {
		t.Errorf("values %v", h.values)
	}
}

func TestApplyStopsAtFirstFailure(t *testing.T) {
	for name, corrupt := range map[string]func(*fakeSettings){
		"refused":  func(h *fakeSettings) { h.refuses = backlog.Setting() },
		"ignored":  func(h *fakeSettings) { h.ignores = backlog.Setting() },
		"moved":    func(h *fakeSettings) { h.values[backlog.Setting()] = "500" },
		"vanished": func(h *fakeSettings) { delete(h.values, backlog.Setting()) },
	} {
		t.Run(name, func(t *testing.T) {
			h, path := newSettings(), recordPath(t)
			corrupt(h)
			before := maps.Clone(h.values)
			made, err := Apply(h, path, []Change{jit, backlog, list})
			if err == nil || !cmp.Equal(made, []Change{jit}) {
				t.Errorf("got changes %v, error %v, want %v, an error", made, err, []Change{jit})
			}
			if _, err := Undo(h, path); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(before, h.values); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestApplyNeedsWritableUndoRecord(t *testing.T) {
	h := newSettings()
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := Apply(h, filepath.Join(blocked, "undo.json"), []Change{jit})
	if err == nil || len(made) > 0 || h.values[jit.Setting()] != "0" {
		t.Errorf("got changes %v, error %v, want an error", made, err)
	}
}

func TestUndoSkipsValuesChangedSince(t *testing.T) {
	h, path := newSettings(), recordPath(t)
	if _, err := Apply(h, path, []Change{jit, backlog, list}); err != nil {
		t.Fatal(err)
	}
	h.values[jit.Setting()] = "2"
	h.values[backlog.Setting()] = "300"
	delete(h.values, list.Setting())
	outcomes, err := Undo(h, path)
	if err != nil || len(outcomes) != 3 {
		t.Fatalf("got outcomes %v, error %v, want length 3, no error", outcomes, err)
	}
	for i, note := range []string{"no longer exists", "old value", `"2" since`} {
		if !strings.Contains(outcomes[i].Note, note) {
			t.Errorf("%s: got %q, want %q", outcomes[i].Change.Setting(), outcomes[i].Note, note)
		}
	}
	if h.values[jit.Setting()] != "2" {
		t.Error("Undo overwrote another program's value")
	}
}

func TestFailedUndoCanBeRetried(t *testing.T) {
	h, path := newSettings(), recordPath(t)
	if _, err := Apply(h, path, []Change{jit, backlog}); err != nil {
		t.Fatal(err)
	}
	h.refuses = jit.Setting()
	if outcomes, err := Undo(h, path); !errors.Is(err, unix.EPERM) || len(outcomes) != 1 {
		t.Errorf("got outcomes %v, error %v, want length 1, %v", outcomes, err, unix.EPERM)
	}
	h.refuses = ""
	outcomes, err := Undo(h, path)
	if err != nil || len(outcomes) != 1 || h.values[jit.Setting()] != "0" {
		t.Errorf("got outcomes %v, error %v, want length 1, no error", outcomes, err)
	}
}

func TestUndoRefusesOtherNamespaceAndSkipsReboot(t *testing.T) {
	h, path := newSettings(), recordPath(t)
	if _, err := Apply(h, path, []Change{jit}); err != nil {
		t.Fatal(err)
	}
	h.scope.Network = "net:[2]"
	if _, err := Undo(h, path); !errors.Is(err, ErrOtherNamespace) {
		t.Errorf("in another namespace: got error %v, want %v", err, ErrOtherNamespace)
	}
	if _, err := Apply(h, path, []Change{backlog}); !errors.Is(err, ErrOtherNamespace) {
		t.Errorf("in another namespace: got error %v, want %v", err, ErrOtherNamespace)
	}
	h.scope.Boot = "later"
	outcomes, err := Undo(h, path)
	if err != nil || len(outcomes) != 1 || outcomes[0].Note == "" || h.values[jit.Setting()] != "1" {
		t.Errorf("after a restart: got %v, error %v, want length 1, no error", outcomes, err)
	}
}

func TestUndoRefusesRecordWritableByOthers(t *testing.T) {
	h, path := newSettings(), recordPath(t)
	if _, err := Apply(h, path, []Change{jit}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := Undo(h, path); err == nil || h.values[jit.Setting()] != "1" {
		t.Errorf("writable by all: got error %v, want an error", err)
	}
	link := path + ".link"
	if err := errors.Join(os.Chmod(path, 0o600), os.Symlink(path, link)); err != nil {
		t.Fatal(err)
	}
	if _, err := Undo(h, link); err == nil {
		t.Error("Undo followed a symbolic link")
	}
	if err := errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Undo(h, path); err == nil {
		t.Error("Undo read from a FIFO")
	}
}

func TestUndoRefusesUnknownSettings(t *testing.T) {
	for _, c := range []Change{
		{Kind: Sysctl, Target: "kernel/core_pattern", After: "x"},
		{Kind: Sysctl, Target: "net/core/../../kernel/core_pattern", After: "x"},
		{Kind: Sysfs, Target: "class/net/../../kernel/queues/rx-0/rps_cpus", After: "1"},
		{Kind: Sysfs, Target: "class/net/eth0/queues/rx-0/rps_cpus\nx", After: "1"},
		{Kind: Sysfs, Target: "power/state", After: "mem"},
		{Kind: Offload, Target: "-i", Key: featureGRO, After: "on"},
		{Kind: FlowHash, Target: "eth0", Key: "udp4", After: "sdfn; reboot"},
		{Kind: FlowHash, Target: "eth0", Key: "tcp4", After: "sdfn"},
		{Kind: "exec", Target: "eth0"},
		{},
	} {
		if c.check() == nil {
			t.Errorf("%+v was accepted", c)
		}
		if made, err := Apply(newSettings(), recordPath(t), []Change{c}); err == nil || len(made) > 0 {
			t.Errorf("%+v was applied", c)
		}
	}
	for _, text := range []string{
		"", "{", "[]", `{"apiVersion":"ropewalk/v2","kind":"DoctorUndo"}`, `{"apiVersion":"ropewalk/v1","kind":"x"}`,
		`{"apiVersion":"ropewalk/v1","kind":"DoctorUndo","changes":[{"kind":"sysctl","target":"kernel/panic","before":"0","after":"1"}]}`,
	} {
		if _, err := parseRecord([]byte(text)); err == nil {
			t.Errorf("%q was accepted as an undo record", text)
		}
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"ropewalk/v1","kind":"DoctorUndo","scope":{},"changes":[{"kind":"sysctl","target":"net/core/bpf_jit_enable","before":"0","after":"1"}]}`))
	f.Add([]byte(`{"changes":[{}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRecord(b)
		if err != nil {
			return
		}
		for _, c := range r.Changes {
			if strings.Contains(c.path(), "..") || strings.ContainsAny(c.Target+c.Before+c.After, "\n\x00") {
				t.Errorf("accepted %+v", c)
			}
		}
	})
}
