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

const cpuPrefix = "/sys/devices/system/cpu/"

// settings are the changed settings, in order, with the values before the first change.
type settings struct {
	root    string
	mu      sync.Mutex
	changed []Setting
	cpus    []Setting // of interrupts and queues, as of the first CPU that went offline
	ended   bool      // restore has begun
}

var errEnding = errors.New("changing settings: this agent is ending")

// set changes settings, until restore. Settings that have the value already stay. After an error those before it stay changed.
func (s *settings) set(list []Setting) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return errEnding
	}
	online := false
	for _, n := range list {
		path := filepath.Clean(n.Path)
		if !strings.HasPrefix(path, "/proc/sys/") && !strings.HasPrefix(path, cpuPrefix) {
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
		if !slices.ContainsFunc(s.changed, func(c Setting) bool { return c.Path == path }) {
			s.changed = append(s.changed, Setting{path, before}) // first: a write may fail half way
		}
		if strings.HasPrefix(path, cpuPrefix) && s.cpus == nil {
			s.cpus = s.placement()
		}
		if err := s.write(path, n.Value); err != nil {
			return fmt.Errorf("setting %s to %q: %w", path, n.Value, err)
		}
		online = online || strings.HasPrefix(path, cpuPrefix) && n.Value != "0"
	}
	if online {
		s.place()
	}
	return nil
}

// placement returns the CPUs of all interrupts and queues. The kernel moves them when a CPU goes offline, and does not move them back.
func (s *settings) placement() []Setting {
	found := []Setting{}
	for _, files := range []string{"/proc/irq/*/smp_affinity_list", "/sys/class/net/*/queues/*/xps_cpus", "/sys/class/net/*/queues/*/rps_cpus"} {
		paths, _ := filepath.Glob(s.root + files) // the pattern is valid
		for _, path := range paths {
			if b, err := os.ReadFile(path); err == nil { // a device with one queue has no XPS
				found = append(found, Setting{strings.TrimPrefix(path, s.root), strings.TrimSpace(string(b))})
			}
		}
	}
	return found
}

// place moves interrupts and queues back. The kernel refuses that where it places them itself, or where their CPUs are all offline.
func (s *settings) place() {
	for _, c := range s.cpus {
		if b, err := os.ReadFile(s.root + c.Path); err == nil && strings.TrimSpace(string(b)) != c.Value {
			_ = s.write(c.Path, c.Value)
		}
	}
}

// restore undoes all changes, the last one first, and ends set. A failure is an error, and does not stop the others.
func (s *settings) restore() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	var errs []error
	for _, c := range slices.Backward(s.changed) {
		if err := s.write(c.Path, c.Value); err != nil {
			errs = append(errs, fmt.Errorf("restoring %s to %q: %w", c.Path, c.Value, err))
		}
	}
	s.changed = nil
	s.place()
	return errors.Join(errs...)
}

func (s *settings) write(path, value string) error {
	return os.WriteFile(s.root+path, []byte(value+"\n"), 0o644)
}
