// SPDX-License-Identifier: Apache-2.0

package measurement

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
)

// DefaultDir is the directory of the saved Results.
const DefaultDir = "/var/lib/ropewalk"

const (
	apiVersion = "ropewalk/v1"
	kind       = "UnderlayMeasurement"
	// maxSize is the largest size of a file, in bytes.
	maxSize = 64 << 10
)

var (
	// ErrNone is the error of Load for a device that was not measured.
	ErrNone = errors.New("AF_XDP was not measured")
	// ErrStale is the error of Load for a Result whose conditions have changed.
	ErrStale = errors.New("the measurement of AF_XDP is out of date")
)

type file struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Result
}

// Path returns the file of a device's Result.
func Path(dir, device string) string { return filepath.Join(dir, "underlay-"+device+".json") }

// Exists reports whether the directory has a saved Result of any device.
func Exists(dir string) bool {
	files, _ := filepath.Glob(Path(dir, "*")) // fails for malformed patterns only
	return len(files) > 0
}

// Load returns the saved Result of a device, which is valid under the present conditions of the device. Else the error says why there is none:
// ErrNone, ErrStale, or another for a file that Save has not written. It reads the conditions in the calling thread's network namespace.
func Load(dir, device string) (Result, error) {
	r, err := read(dir, device)
	if err != nil {
		return Result{}, err
	}
	now, err := ReadConditions(device)
	if err != nil {
		return Result{}, err
	}
	if r.Conditions != now {
		return Result{}, fmt.Errorf("%w on %s: measured with %v, now %v", ErrStale, device, r.Conditions, now)
	}
	return r, nil
}

func read(dir, device string) (r Result, err error) {
	if device != filepath.Base(device) {
		return r, fmt.Errorf("reading the measurement of %q: no name of a device", device)
	}
	b, err := readBounded(Path(dir, device))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("%w on %s", ErrNone, device)
	}
	if err == nil {
		r, err = parse(b, device)
	}
	if err != nil {
		return Result{}, fmt.Errorf("reading the measurement of %s: %w", device, err)
	}
	return r, nil
}

// readBounded reads a regular file. It neither follows a link nor waits for the other end of a pipe.
func readBounded(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxSize {
		return nil, fmt.Errorf("%s: want a regular file of at most %d bytes", path, maxSize)
	}
	return io.ReadAll(io.LimitReader(f, maxSize))
}

func parse(b []byte, device string) (Result, error) {
	var f file
	if err := json.Unmarshal(b, &f); err != nil {
		return Result{}, err
	}
	if f.APIVersion != apiVersion || f.Kind != kind || f.Device != device {
		return Result{}, fmt.Errorf("got %q %q of device %q, want %q %q of %q", f.APIVersion, f.Kind, f.Device, apiVersion, kind, device)
	}
	return f.Result, f.check()
}

// Save replaces the saved Result of r's device.
func Save(dir string, r *Result) error {
	if err := save(dir, r); err != nil {
		return fmt.Errorf("saving the measurement of %s: %w", r.Device, err)
	}
	return nil
}

func save(dir string, r *Result) error {
	if err := r.check(); err != nil {
		return err
	}
	b, err := json.MarshalIndent(file{apiVersion, kind, *r}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return atomicfile.Write(Path(dir, r.Device), append(b, '\n'), 0o644)
}
