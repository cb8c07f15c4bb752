// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
)

// state is the data that a Runner saves about an interface that it brought up. Down needs it when
// the daemon does not answer.
type state struct {
	PID  int `json:"pid"`
	Link int `json:"link"` // index of the interface
	// NetNS is the network namespace in which Up ran.
	NetNS hostnet.Namespace `json:"netns"`
	Table uint32            `json:"table"` // of the default routes, 0 for none
	DNS   bool              `json:"dns"`   // resolvconf has an entry
	Path  string            `json:"path"`  // of the file
	// Settings are the host's settings that Up or Reload has made, for the next Reload.
	Settings *settings `json:"settings,omitempty"`
	// Suppress has the priorities of the rules that addSuppressRule has added.
	Suppress map[string]int `json:"suppress,omitempty"`
}

// tables returns the tables of the default routes.
func (st *state) tables() []uint32 {
	tables := []uint32{st.Table}
	if st.Settings != nil {
		tables = append(tables, st.Settings.OldMarks...)
	}
	return without(tables, []uint32{0})
}

func (j *job) statePath() string { return j.runFile(".json") }

// saveState replaces the saved state, and sets its NetNS to the caller's.
func (j *job) saveState(st state) error {
	var err error
	if st.NetNS, err = hostnet.CurrentNamespace(); err != nil {
		return err
	}
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("saving the state of %s: %w", j.Name, err)
	}
	return replaceFile(j.statePath(), append(b, '\n'))
}

// loadState returns the saved state, if there is one for the caller's network namespace. It treats an unreadable state as none.
func (j *job) loadState() (state, bool) {
	var st state
	b, err := os.ReadFile(j.statePath())
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	here, nsErr := hostnet.CurrentNamespace()
	if err != nil || nsErr != nil || st.NetNS != here {
		return state{}, false
	}
	return st, true
}

func (j *job) removeState() error {
	if err := os.Remove(j.statePath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the state of %s: %w", j.Name, err)
	}
	return nil
}

// recordSettings saves the settings.
type recordSettings struct{ settings settings }

func (r recordSettings) run(_ context.Context, j *job) error {
	return j.updateState(func(st *state) { st.Settings, st.Table = &r.settings, r.settings.Mark })
}

// recordDNS saves whether resolvconf has an entry.
type recordDNS struct{ set bool }

func (r recordDNS) run(_ context.Context, j *job) error {
	return j.updateState(func(st *state) { st.DNS = r.set })
}

// recordTable saves the table before any rule refers to it.
type recordTable struct{ table uint32 }

func (r recordTable) run(_ context.Context, j *job) error {
	return j.updateState(func(st *state) { st.Table = r.table })
}

// updateState changes the saved state.
func (j *job) updateState(change func(*state)) error {
	st, _ := j.loadState()
	change(&st)
	return j.saveState(st)
}

// StartedFrom returns the path of the file with which a Runner with this runDir has brought an interface up, in the caller's network
// namespace. It is empty if none has.
func StartedFrom(runDir, name string) string {
	st, _ := (&job{Runner: &Runner{RunDir: runDir}, Interface: Interface{Name: name}}).loadState()
	return st.Path
}

// RecordSuccessor records an upgrade: process to has succeeded process from as the daemon of an interface. A Runner with this runDir may
// then kill the successor, as it might have killed the predecessor. It changes nothing if from was not started by a Runner. It fails
// while a Runner works on the interface.
func RecordSuccessor(runDir, name string, from, to int) error {
	r := &Runner{RunDir: runDir}
	j := &job{Runner: r, Interface: Interface{Name: name}}
	if st, ok := j.loadState(); !ok || st.PID != from {
		return nil
	}
	unlock, err := r.lock(name)
	if err != nil {
		return fmt.Errorf("recording the successor: %w", err)
	}
	defer unlock()
	st, ok := j.loadState() // again, under the lock
	if !ok || st.PID != from {
		return nil
	}
	st.PID = to
	return j.saveState(st)
}

// ErrLocked is the error of Lock while another process has the lock.
var ErrLocked = errors.New("another process is bringing it up or down")

// lock keeps other Runners from working on the interface at the same time. It does not wait: a hook that runs ropewalk for its
// own interface would wait forever. unlock also removes the file of the lock, so that none is left of a failed Up or of a mistyped name.
func (r *Runner) lock(name string) (unlock func(), err error) {
	if err := os.MkdirAll(r.RunDir, 0o755); err != nil {
		return nil, fmt.Errorf("creating the state directory: %w", err)
	}
	f, err := lockFile(filepath.Join(r.RunDir, name+".lock"))
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", name, err)
	}
	return func() {
		_ = os.Remove(f.Name()) // a file that is left harms nothing
		// Unlock first: a child that is being forked has a copy of the descriptor, so Close alone might unlock too late.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		f.Close()
	}, nil
}

// Lock keeps Runners with this runDir, and other callers of Lock, from working on an interface. It does not wait.
func Lock(runDir, name string) (unlock func(), err error) {
	return (&Runner{RunDir: runDir}).lock(name)
}

// lockFile creates and locks a file. The owner of the lock removes the file. So a lock may be on a
// file without a name, which others do not see; lockFile then tries again.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		locked, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if named, err := os.Lstat(path); err == nil && os.SameFile(locked, named) {
			return f, nil
		}
		_ = f.Close()
	}
}

// runFile returns the path of a file of the interface in RunDir.
func (j *job) runFile(suffix string) string { return filepath.Join(j.RunDir, j.Name+suffix) }

// removeFiles removes the saved state and the log of an interface that is down. The endpoints that a killed daemon has saved stay:
// a service manager calls Down before it starts the next daemon, which renews the sessions. The caller holds the lock.
func (j *job) removeFiles() error {
	var errs []error
	for _, path := range []string{j.statePath(), j.runFile(".log")} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("removing the files of %s: %w", j.Name, err)
	}
	return nil
}

// replaceFile replaces a file, so that only its owner can read the new content.
func replaceFile(path string, content []byte) error {
	if err := atomicfile.Write(path, content, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
