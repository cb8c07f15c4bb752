// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var errInjected = errors.New("injected")

// faultySystem fails one call of Open, and counts open resources.
type faultySystem struct {
	system
	failAt, calls int
	failed        string // the name of the failed call
	live          map[string]int
}

func (f *faultySystem) fail(call string) bool {
	f.calls++
	if f.calls != f.failAt {
		return false
	}
	f.failed = call
	return true
}

func (f *faultySystem) socket() (int, error) {
	if f.fail("socket") {
		return -1, errInjected
	}
	fd, err := f.system.socket()
	if err == nil {
		f.live["descriptor"]++
	}
	return fd, err
}

func (f *faultySystem) close(fd int) error {
	f.live["descriptor"]--
	return f.system.close(fd)
}

func (f *faultySystem) mmap(fd int, offset int64, length, flags int) ([]byte, error) {
	if f.fail(fmt.Sprintf("mmap of %d at %#x", length, offset)) {
		return nil, errInjected
	}
	mem, err := f.system.mmap(fd, offset, length, flags)
	if err == nil {
		f.live["mapping"]++
	}
	return mem, err
}

func (f *faultySystem) munmap(mem []byte) error {
	f.live["mapping"]--
	return f.system.munmap(mem)
}

func (f *faultySystem) madvise(mem []byte, advice int) error {
	if f.fail("madvise") {
		return errInjected
	}
	return f.system.madvise(mem, advice)
}

func (f *faultySystem) setInt(fd, level, option, value int) error {
	if f.fail(fmt.Sprintf("setsockopt %d/%d", level, option)) {
		return errInjected
	}
	return f.system.setInt(fd, level, option, value)
}

func (f *faultySystem) setBytes(fd, level, option int, value []byte) error {
	if f.fail(fmt.Sprintf("setsockopt %d/%d", level, option)) {
		return errInjected
	}
	return f.system.setBytes(fd, level, option, value)
}

func (f *faultySystem) getBytes(fd, level, option int, value []byte) (int, error) {
	if f.fail(fmt.Sprintf("getsockopt %d/%d", level, option)) {
		return 0, errInjected
	}
	return f.system.getBytes(fd, level, option, value)
}

func (f *faultySystem) bind(fd int, address *unix.SockaddrXDP) error {
	if f.fail("bind") {
		return errInjected
	}
	return f.system.bind(fd, address)
}

// TestFailedSetUpLeaksNothing fails each call once, with the simulated and with the real kernel.
func TestFailedSetUpLeaksNothing(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		injectAll(t, smallConfig(Config{}), newFake(t), func() string { return "" })
	})
	t.Run("real", func(t *testing.T) {
		l := newLink(t, 1)
		injectAll(t, Config{Interface: l.ends[0].index}, l.ends[0], openResources)
	})
}

func injectAll(t *testing.T, c Config, sys system, held func() string) {
	c.TxChecksum = true
	var tolerated []string
	for failAt := 1; ; failAt++ {
		f := &faultySystem{system: sys, failAt: failAt, live: map[string]int{}}
		before := held()
		s, err := open(c, f)
		switch {
		case f.failed == "" && err != nil:
			t.Fatal(err)
		case err == nil:
			if f.failed != "" {
				tolerated = append(tolerated, f.failed)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		case !errors.Is(err, errInjected):
			t.Errorf("%s: got error %v, want %v", f.failed, err, errInjected)
		}
		if after := held(); f.live["descriptor"] != 0 || f.live["mapping"] != 0 || after != before {
			t.Errorf("%s: %v left; before\n%s\nafter\n%s", f.failed, f.live, before, after)
		}
		if f.failed == "" {
			t.Logf("%d calls; tolerated failures: %s", f.calls, strings.Join(tolerated, ", "))
			return
		}
	}
}

// openResources lists the process's AF_XDP descriptors and mappings. Other descriptors may change meanwhile.
func openResources() string {
	var out []string
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "socket:") {
			out = append(out, line)
		}
	}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, fd := range fds {
		var n int
		if _, err := fmt.Sscan(fd.Name(), &n); err != nil {
			continue
		}
		if domain, err := unix.GetsockoptInt(n, unix.SOL_SOCKET, unix.SO_DOMAIN); err == nil && domain == unix.AF_XDP {
			out = append(out, fd.Name())
		}
	}
	return strings.Join(out, "\n")
}
