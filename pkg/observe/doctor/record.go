// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
)

// DefaultUndoRecord is the default path of the undo record, which Apply writes and Undo reads.
const DefaultUndoRecord = "/var/lib/ropewalk/doctor-undo.json"

// maxRecord is the largest size of an undo record, in bytes.
const maxRecord = 1 << 20

const recordKind = "DoctorUndo"

// record is the undo record.
type record struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Scope      Scope    `json:"scope"`
	Changes    []Change `json:"changes"`
}

func newRecord(p Scope) *record { return &record{APIVersion: APIVersion, Kind: recordKind, Scope: p} }

// readRecord refuses a file that other users can write, because Undo writes its values to the kernel.
func readRecord(path string) (*record, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("reading the undo record: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("reading the mode of the undo record %s: %w", path, err)
	}
	foreign := st.Uid != 0 && int(st.Uid) != os.Geteuid()
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("refusing doctor's undo record %s: it is no regular file", path)
	}
	if foreign || st.Mode&0o022 != 0 {
		return nil, fmt.Errorf("refusing doctor's undo record %s: others can write to it (owner: user %d, mode %o); check its content, then run chown root and chmod go-w",
			path, st.Uid, st.Mode&0o7777)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return nil, fmt.Errorf("reading the undo record %s: %w", path, err)
	}
	r, err := parseRecord(b)
	if err != nil {
		return nil, fmt.Errorf("reading the undo record %s: %w", path, err)
	}
	return r, nil
}

func parseRecord(b []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, err
	}
	if r.APIVersion != APIVersion || r.Kind != recordKind {
		return nil, fmt.Errorf("got %q %q, want %q %q", r.APIVersion, r.Kind, APIVersion, recordKind)
	}
	for _, c := range r.Changes {
		if err := c.check(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// write replaces the file atomically and syncs it to disk.
func (r *record) write(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing the undo record %s: %w", path, err)
		}
	}()
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, append(b, '\n'), 0o600)
}
