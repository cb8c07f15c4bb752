// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var errInjected = errors.New("injected")

// faulty has one call of set-up fail, and counts what is open.
type faulty struct {
	system
	failAt, calls int
	failed        string // which call that was
	live          map[string]int
}

func (f *faulty) fail(call string) bool {
	f.calls++
	if f.calls != f.failAt {
		return false
	}
	f.failed = call
	return true
}

func (f *faulty) socket() (int, error) {
	if f.fail("socket") {
		return -1, errInjected
	}
	fd, err := f.system.socket()
	if err == nil {
		f.live["descriptor"]++
	}
	return fd, err
}

func (f *faulty) close(fd int) error {
	f.live["descriptor"]--
	return f.system.close(fd)
}

func (f *faulty) mmap(fd int, offset int64, length, flags int) ([]byte, error) {
	if f.fail(fmt.Sprintf("mmap of %d at %#x", length, offset)) {
		return nil, errInjected
	}
	mem, err := f.system.mmap(fd, offset, length, flags)
	if err == nil {
		f.live["mapping"]++
	}
	return mem, err
}

func (f *faulty) munmap(mem []byte) error {
	f.live["mapping"]--
	return f.system.munmap(mem)
}

func (f *faulty) madvise(mem []byte, advice int) error {
	if f.fail("madvise") {
		return errInjected
	}
	return f.system.madvise(mem, advice)
}

func (f *faulty) setInt(fd, level, option, value int) error {
	if f.fail(fmt.Sprintf("setsockopt %d/%d", level, option)) {
		return errInjected
	}
	return f.system.setInt(fd, level, option, value)
}

func (f *faulty) setBytes(fd, level, option int, value []byte) error {
	if f.fail(fmt.Sprintf("setsockopt %d/%d", level, option)) {
		return errInjected
	}
	return f.system.setBytes(fd, level, option, value)
}

func (f *faulty) getBytes(fd, level, option int, value []byte) (int, error) {
	if f.fail(fmt.Sprintf("getsockopt %d/%d", level, option)) {
		return 0, errInjected
	}
	return f.system.getBytes(fd, level, option, value)
}

func (f *faulty) bind(fd int, address *unix.SockaddrXDP) error {
	if f.fail("bind") {
		return errInjected
	}
	return f.system.bind(fd, address)
}

// TestNoFailureOfSetUpLeaksAnything has each call fail once, with a kernel in Go and with the real one.
func TestNoFailureOfSetUpLeaksAnything(t *testing.T) {
	t.Run("fake", func(t *testing.T) {
		injectAll(t, small(Config{}), newFake(t), func() string { return "" })
	})
	t.Run("real", func(t *testing.T) {
		l := newLink(t, 1)
		injectAll(t, Config{Interface: l.ends[0].index}, l.ends[0], held)
	})
}

func injectAll(t *testing.T, c Config, sys system, held func() string) {
	c.MultiBuffer, c.TxChecksum, c.BusyPoll, c.Patience = true, true, time.Microsecond, time.Minute
	var tolerated []string
	for failAt := 1; ; failAt++ {
		f := &faulty{system: sys, failAt: failAt, live: map[string]int{}}
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
			t.Errorf("%s: %v", f.failed, err)
		}
		if after := held(); f.live["descriptor"] != 0 || f.live["mapping"] != 0 || after != before {
			t.Errorf("%s: %v left; before\n%s\nafter\n%s", f.failed, f.live, before, after)
		}
		if f.failed == "" {
			t.Logf("%d calls; done without: %s", f.calls, strings.Join(tolerated, ", "))
			return
		}
	}
}

// held is what the process has of the kernel: AF_XDP descriptors and mappings of them. Others may come and go
// meanwhile.
func held() string {
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
