// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
)

func listen(t *testing.T, dir uapi.Dir, name string) *uapi.Listener {
	t.Helper()
	l, err := dir.Listen(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// stale leaves the socket of a process that died.
func stale(t *testing.T, dir uapi.Dir, name string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(string(dir), name+".sock")})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
}

func TestSocketIsPrivateAndRemovedOnClose(t *testing.T) {
	dir := uapitest.NewDir(t) + "/made"
	l := listen(t, dir, "wg0")
	info, err := os.Lstat(string(dir) + "/wg0.sock")
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("socket: got %v, error %v, want %v, no error", info.Mode(), err, os.ModeSocket|0o600)
	}
	if info, err := os.Stat(string(dir)); err != nil || info.Mode().Perm()&^0o755 != 0 {
		t.Errorf("directory: got %v, error %v, want no error", info.Mode(), err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(string(dir)); err != nil || len(entries) != 0 {
		t.Errorf("files after Close: got %v, error %v, want length 0, no error", entries, err)
	}
}

func TestListenReplacesDeadButNotLiveSocket(t *testing.T) {
	dir := uapitest.NewDir(t)
	stale(t, dir, "wg0")
	listen(t, dir, "wg0")
	if _, err := dir.Listen("wg0"); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("second listener: got error %v, want %v", err, syscall.EADDRINUSE)
	}
}

func TestListenKeepsFileThatIsNoSocket(t *testing.T) {
	dir := uapitest.NewDir(t)
	path := string(dir) + "/wg0.sock"
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.Listen("wg0"); !errors.Is(err, syscall.EEXIST) {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestOneOfManyConcurrentListenersSucceeds(t *testing.T) {
	for range 20 {
		dir := uapitest.NewDir(t)
		stale(t, dir, "wg0")
		var mu sync.Mutex
		var winners []*uapi.Listener
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				l, err := dir.Listen("wg0")
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					winners = append(winners, l)
				} else if !errors.Is(err, syscall.EADDRINUSE) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(winners) != 1 {
			t.Fatalf("%d listeners on one interface", len(winners))
		}
		winners[0].Close()
	}
}

func TestCloseKeepsSocketOfLaterListener(t *testing.T) {
	dir := uapitest.NewDir(t)
	first := listen(t, dir, "wg0")
	if err := os.Remove(string(dir) + "/wg0.sock"); err != nil {
		t.Fatal(err)
	}
	listen(t, dir, "wg0")
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(string(dir) + "/wg0.sock"); err != nil {
		t.Error(err)
	}
}

func TestInvalidInterfaceNamesAreRefused(t *testing.T) {
	dir := uapitest.NewDir(t)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a b", "a:b", "sixteen-bytes-xx", "a\x00b", "a\n"} {
		if _, err := dir.Listen(name); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Listen(%q): got error %v, want %v", name, err, syscall.EINVAL)
		}
		if _, err := dir.Dial(name); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Dial(%q): got error %v, want %v", name, err, syscall.EINVAL)
		}
	}
}

func TestInterfacesListsOnlyServedSockets(t *testing.T) {
	dir := uapitest.NewDir(t)
	for _, name := range []string{"b", "a"} {
		listen(t, dir, name)
	}
	stale(t, dir, "dead")
	if err := os.WriteFile(string(dir)+"/file.sock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	names, err := dir.Interfaces()
	if err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Error(names, err)
	}
	if names, err := (dir + "/none").Interfaces(); err != nil || len(names) != 0 {
		t.Error(names, err)
	}
}

func TestSweepRemovesOnlyOldDeadMatchingSockets(t *testing.T) {
	dir := uapitest.NewDir(t)
	for name, age := range map[string]time.Duration{"rwold": 2 * time.Minute, "rwyoung": 0, "rwserved": 2 * time.Minute, "wg0": 2 * time.Minute} {
		if name == "rwserved" {
			listen(t, dir, name)
		} else {
			stale(t, dir, name)
		}
		aged(t, dir, name, age)
	}
	if err := os.WriteFile(string(dir)+"/rwfile.sock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	aged(t, dir, "rwfile", 2*time.Minute)
	if err := dir.Sweep("rw*.sock", time.Minute); err != nil {
		t.Error(err)
	}
	left, err := filepath.Glob(string(dir) + "/*.sock")
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if want := []string{"rwfile.sock", "rwserved.sock", "rwyoung.sock", "wg0.sock"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("got %v, %v; want %v", left, err, want)
	}
	if err := (dir + "/none").Sweep("rw*.sock", 0); err != nil {
		t.Error("no directory: ", err)
	}
}

// aged sets the modification time of a socket's file back.
func aged(t *testing.T, dir uapi.Dir, name string, age time.Duration) {
	t.Helper()
	when := time.Now().Add(-age)
	if err := os.Chtimes(string(dir)+"/"+name+".sock", when, when); err != nil {
		t.Fatal(err)
	}
}

func TestDialReportsThatNoDaemonRuns(t *testing.T) {
	dir := uapitest.NewDir(t)
	stale(t, dir, "dead")
	for _, name := range []string{"dead", "none"} {
		if _, err := dir.Dial(name); !uapi.IsNotRunning(err) {
			t.Errorf("%s: got error %v", name, err)
		}
	}
}
