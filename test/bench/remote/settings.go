// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Setting is a value in a file below /proc/sys or of a CPU below /sys.
type Setting struct{ Path, Value string }

// Sysctl returns the Setting of a sysctl.
func Sysctl(name, value string) Setting {
	return Setting{filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/")), value}
}

// Offline returns the Setting that takes a CPU offline.
func Offline(cpu int) Setting {
	return Setting{fmt.Sprintf("/sys/devices/system/cpu/cpu%d/online", cpu), "0"}
}

// settings are the changed settings, in order, with the values before.
type settings struct {
	root    string
	mu      sync.Mutex
	changed []Setting
}

// set changes settings. Settings that have the value already stay. After an error those before it stay changed.
func (s *settings) set(list []Setting) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range list {
		path := filepath.Clean(n.Path)
		if !strings.HasPrefix(path, "/proc/sys/") && !strings.HasPrefix(path, "/sys/devices/system/cpu/") {
			return fmt.Errorf("setting %s: want a sysctl or a CPU", n.Path)
		}
		old, err := os.ReadFile(s.root + path)
		if err != nil {
			return fmt.Errorf("setting %s: %w", path, err)
		}
		before := strings.TrimSpace(string(old))
		if before == n.Value {
			continue
		}
		s.changed = append(s.changed, Setting{path, before}) // first: a write may fail half way
		if err := s.write(path, n.Value); err != nil {
			return fmt.Errorf("setting %s to %q: %w", path, n.Value, err)
		}
	}
	return nil
}

// restore undoes all changes, the last one first. A failure is an error, and does not stop the others.
func (s *settings) restore() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, c := range slices.Backward(s.changed) {
		if err := s.write(c.Path, c.Value); err != nil {
			errs = append(errs, fmt.Errorf("restoring %s to %q: %w", c.Path, c.Value, err))
		}
	}
	s.changed = nil
	return errors.Join(errs...)
}

func (s *settings) write(path, value string) error {
	return os.WriteFile(s.root+path, []byte(value+"\n"), 0o644)
}
