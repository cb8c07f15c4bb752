// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/netlab/netlabtest"
	"github.com/ropewalk/ropewalk/test/expect"
)

// privileged skips where no lab can be made.
func privileged(t *testing.T) {
	t.Helper()
	if err := Probe(); errors.Is(err, netlab.ErrPrivileges) || errors.Is(err, os.ErrNotExist) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
}

func TestLabWithoutGeneratorFailsAndCleansUp(t *testing.T) {
	privileged(t)
	_, err := New(t.Context(), Config{Prefix: netlabtest.Prefix(t), Traffic: []string{"/bin/sh", "-c", "echo no generator here; exit 3", "sh"}})
	if err == nil || !strings.Contains(err.Error(), "no generator here") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("err = %v", err)
	}
}

func TestLabReportsDaemonExitReason(t *testing.T) {
	privileged(t)
	daemon := Command("/bin/sh", "-c", "echo cannot serve $0; exit 4")
	_, err := New(t.Context(), Config{Prefix: netlabtest.Prefix(t), Daemon: daemon})
	if err == nil || !strings.Contains(err.Error(), "cannot serve rb") || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("err = %v", err)
	}
}

func TestStopKillsChildProcesses(t *testing.T) {
	privileged(t)
	lab, err := netlab.New(netlabtest.Prefix(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	}()
	h, err := lab.Host("a")
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartProcess(t.Context(), h, "/bin/sh", "-c", "sleep 1000 & echo started; wait")
	if err != nil {
		t.Fatal(err)
	}
	expect.EventuallyNoError(t, "the shell and its child run", func() error {
		if p.Log() != "started" || len(p.PIDs()) != 2 {
			return fmt.Errorf("log %q, processes %v", p.Log(), p.PIDs())
		}
		return nil
	})
	if err := errors.Join(p.Stop(), p.Stop(), p.Err()); err != nil {
		t.Error(err)
	}
	expect.Eventually(t, "no process is left", func() bool { return len(p.PIDs()) == 0 })
}

func TestUnexpectedProcessExitIsAnError(t *testing.T) {
	privileged(t)
	lab, err := netlab.New(netlabtest.Prefix(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	h, err := lab.Host("a")
	if err != nil {
		t.Fatal(err)
	}
	p, err := StartProcess(t.Context(), h, "/bin/sh", "-c", "echo goodbye")
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "goodbye") {
		t.Errorf("err = %v", err)
	}
	if _, err := StartProcess(t.Context(), h); err == nil {
		t.Error("a process without a command")
	}
}

func TestNoPingIsSentAfterTheEnd(t *testing.T) {
	privileged(t)
	net, err := netlab.New(netlabtest.Prefix(t))
	if err != nil {
		t.Fatal(err)
	}
	l := &Lab{net: net}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i, side := range []**Side{&l.A, &l.B} {
		if *side, err = newSide(net, string(rune('a'+i)), byte(1+i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := net.Cable(l.A.Host, l.B.Host, netlab.CableConfig{AddrsA: l.A.Cable[:], AddrsB: l.B.Cable[:]}); err != nil {
		t.Fatal(err)
	}
	if err := l.connect(t.Context(), l.B); err != nil {
		t.Fatal(err)
	}
	rtts, sent, err := l.Ping(t.Context(), time.Now().Add(-time.Second), 3, time.Millisecond)
	if err != nil || sent != 0 || len(rtts) != 0 {
		t.Errorf("%d sent after the end, %v, %v", sent, rtts, err)
	}
	if _, sent, err = l.Ping(t.Context(), time.Time{}, 3, time.Millisecond); err != nil || sent != 3 {
		t.Errorf("%d of 3 sent, %v", sent, err)
	}
}

func TestSocketGlobMatchesOnlyLabSockets(t *testing.T) {
	for name, want := range map[string]bool{"rb1a2b3a.sock": true, "rb1a2b3b.sock": true, "rw1a2b3l.sock": false, "wg0.sock": false} {
		if got, err := filepath.Match(socketGlob, name); got != want || err != nil {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}

func TestAbsentRequiresMissingDevice(t *testing.T) {
	if err := absent("lo"); err == nil {
		t.Error("lo is there")
	}
	if err := absent("rbnobody"); err != nil {
		t.Error(err)
	}
	if err := absent(strings.Repeat("x", 200)); err == nil {
		t.Error("absent accepted a device name that the kernel rejects")
	}
}
