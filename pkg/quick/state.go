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
)

// state is what a Runner has to know of an interface it brought up once its daemon cannot be asked any more.
type state struct {
	PID   int    `json:"pid"`
	Link  int    `json:"link"`  // index of the interface
	NetNS uint64 `json:"netns"` // inode of the network namespace
	Table uint32 `json:"table"` // of the default routes, 0 for none
	DNS   bool   `json:"dns"`   // resolvconf has an entry
}

func (j *job) statePath() string { return filepath.Join(j.RunDir, j.Name+".json") }

// remember replaces what is known; the namespace is the caller's.
func (j *job) remember(st state) error {
	var err error
	if st.NetNS, err = networkNamespace(); err != nil {
		return err
	}
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("remembering %s: %w", j.Name, err)
	}
	return replaceFile(j.statePath(), append(b, '\n'))
}

// recall reports whether anything is known of an interface in the caller's namespace. What cannot be read is nothing.
func (j *job) recall() (state, bool) {
	var st state
	b, err := os.ReadFile(j.statePath())
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	here, nsErr := networkNamespace()
	if err != nil || nsErr != nil || st.NetNS != here {
		return state{}, false
	}
	return st, true
}

func (j *job) forget() error {
	if err := os.Remove(j.statePath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forgetting %s: %w", j.Name, err)
	}
	return nil
}

// networkNamespace identifies the calling thread's.
func networkNamespace() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, fmt.Errorf("identifying the network namespace: %w", err)
	}
	return st.Ino, nil
}

// recordTable remembers the table before any rule leads to it.
type recordTable struct{ table uint32 }

func (recordTable) String() string { return "" }

func (recordTable) undo() Step { return nil }

func (s recordTable) run(_ context.Context, j *job) error {
	return j.amend(func(st *state) { st.Table = s.table })
}

// amend changes what is known.
func (j *job) amend(change func(*state)) error {
	st, _ := j.recall()
	change(&st)
	return j.remember(st)
}

// lock keeps other Runners from working on the interface at the same time. It does not wait: a hook that calls for its
// own interface would wait forever.
func (r *Runner) lock(name string) (unlock func(), err error) {
	if err := os.MkdirAll(r.RunDir, 0o755); err != nil {
		return nil, fmt.Errorf("creating the directory for what is remembered: %w", err)
	}
	path := filepath.Join(r.RunDir, name+".lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking %s: %w", name, err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errors.New("another process is bringing it up or down")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", name, err)
	}
	return func() {
		// A process that is just being forked has a copy of the descriptor, so closing alone would unlock too late.
		_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
		f.Close()
	}, nil
}

// replaceFile writes a file that only its owner can read, and puts it in place when it is safe on disk: whoever reads
// path sees the old content or the new, even after a crash. path.tmp is used meanwhile.
func replaceFile(path string, content []byte) error {
	tmp := path + ".tmp"
	err := os.Remove(tmp)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = writeNew(tmp, content)
	}
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		_ = os.Remove(tmp) // there may be none
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

func writeNew(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
