// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestKeyIsGeneratedOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	k, err := openKeyring(dir, 0, rand.Reader)
	if err != nil || k.current.key.IsZero() || k.current.number != 1 {
		t.Fatal(err)
	}
	again, err := openKeyring(dir, 7, iotest.ErrReader(os.ErrInvalid))
	if err != nil || again.current.number != 1 || !again.current.key.Equal(k.current.key) {
		t.Errorf("second start: another key, or error %v", err)
	}
	st, err := os.Stat(filepath.Join(dir, keyFile))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Error(st, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Error(entries, err)
	}
}

func TestInvalidKeyFileIsKeptAndRejected(t *testing.T) {
	good, err := noise.NewPrivateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"empty":           {"", 0o600},
		"not base64":      {"not a key\n", 0o600},
		"truncated key":   {good.Base64()[:20], 0o600},
		"the zero key":    {strings.Repeat("A", 43) + "=\n", 0o600},
		"too long":        {good.Base64() + strings.Repeat("\n", 5) + "x", 0o600},
		"readable by all": {good.Base64() + "\n", 0o644},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, keyFile)
			if err := os.WriteFile(path, []byte(c.text), c.mode); err != nil {
				t.Fatal(err)
			}
			k, err := openKeyring(dir, 0, rand.Reader)
			if err == nil || k != nil {
				t.Fatal("accepted")
			}
			if strings.Contains(err.Error(), good.Base64()[:8]) {
				t.Error("the error contains the key")
			}
			if text, err := os.ReadFile(path); err != nil || string(text) != c.text {
				t.Error("the file was changed", err)
			}
		})
	}
}

func TestUnstorableKeyIsNotUsed(t *testing.T) {
	file, link := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "link") // neither is a directory, and link leads nowhere
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink("missing", link)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, link} {
		m, _, e := newTestMeshReconciler(t)
		m.cfg.KeyDir = dir
		own := meshNode(0, noise.PublicKey{})
		for range 2 {
			if _, err := m.reconcile(t.Context(), reconcileInput{self: own, nodes: []mesh.Node{own}}); err == nil || m.keys != nil || e.saved.PrivateKey != nil {
				t.Errorf("%s: error %v, keyring %v, saved %v", dir, err, m.keys, e.saved.PrivateKey)
			}
		}
	}
}

func TestKeyringUsesLowestGeneration(t *testing.T) {
	dir := t.TempDir()
	open := func() *keyring {
		t.Helper()
		r, err := openKeyring(dir, 0, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := open()
	first := r.current.key
	if err := os.WriteFile(filepath.Join(dir, "private-x.key"), nil, 0o600); err != nil { // a file of another program
		t.Fatal(err)
	}
	for asked, want := range map[int64]int64{0: 2, 9: 9} {
		if err := r.prepare(asked); err != nil {
			t.Fatal(err)
		}
		if again := open(); !again.current.key.Equal(first) || !again.next.key.Equal(r.next.key) || again.next.number != want {
			t.Errorf("after a restart: got %d, %d, want %d", again.current.number, again.next.number, want)
		}
		if err := os.Remove(r.path(r.next)); err != nil {
			t.Fatal(err)
		}
		r.next = generation{}
	}
	if err := r.prepare(12); err != nil {
		t.Fatal(err)
	}
	second := r.next.key
	if err := r.advance(); err != nil || r.next.number != 0 || !r.next.public().IsZero() {
		t.Fatal(err)
	}
	if again := open(); !again.current.key.Equal(second) || again.current.number != 12 || again.next.number != 0 {
		t.Errorf("after the change: got %d, %d, want 12, 0", again.current.number, again.next.number)
	}
}

func TestLostKeyGetsRequestedGeneration(t *testing.T) {
	if r, err := openKeyring(t.TempDir(), 5, rand.Reader); err != nil || r.current.number != 5 {
		t.Error(r.current.number, err)
	}
}

func TestKeyFileNamesAreStrict(t *testing.T) {
	for name, want := range map[string]int64{
		"private.key": 1, "private-2.key": 2, "private-1.key": 0, "private-02.key": 0, "private--2.key": 0, "private-.key": 0,
		"private-2.key.123": 0, "private-+2.key": 0, "private-99999999999999999999.key": 0, "key": 0, "": 0,
	} {
		if n, ok := generationOf(name); ok != (want != 0) || ok && n != want {
			t.Errorf("%q: got %d, %v, want %v", name, n, ok, (want != 0))
		}
	}
}

func TestInterruptedKeyChangeContinues(t *testing.T) {
	dir := t.TempDir()
	one, err := openKeyring(dir, 0, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := openKeyring(dir, 0, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.prepare(2); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(dir, keyFile+".123") // a hard link to the old key
	if err := os.Link(filepath.Join(dir, keyFile), left); err != nil {
		t.Fatal(err)
	}
	if err := other.advance(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Error("the old key is still there:", err)
	}
	if err := one.prepare(2); err != nil || !one.next.key.Equal(other.current.key) {
		t.Error("another key of the same generation, or", err)
	}
	if err := one.advance(); err != nil || !one.current.key.Equal(other.current.key) {
		t.Error("the change does not end:", err)
	}
}
