// SPDX-License-Identifier: Apache-2.0

package autounderlay

import (
	"bufio"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestKilledProcessLeavesNoProgram opens the port in a child process that cannot close it.
func TestKilledProcessLeavesNoProgram(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		runChild(t)
		select {} // until killed
	}
	requireXDP(t)
	s := newTestNet(t)
	cmd := s.here.Command(t.Context(), os.Args[0], "-test.v", "-test.run=^"+s.Name()+"$")
	cmd.Env = append(os.Environ(), childEnv+"=1", childKeepsPortOpen+"=1")
	out, err := cmd.StdoutPipe()
	expect.NoError(t, err)
	expect.NoError(t, cmd.Start())
	ready := false
	for lines := bufio.NewScanner(out); !ready && lines.Scan(); {
		ready = strings.HasPrefix(lines.Text(), "path xdp")
	}
	if !ready || s.attached(s.dev) == 0 {
		t.Errorf("ready %v, program %d", ready, s.attached(s.dev))
	}
	expect.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // the error is that of the kill
	s.await("the program is detached", func() bool { return s.attached(s.dev) == 0 })
}

// childEnv is set for a child process. childKeepsPortOpen is set for one that ends with its port open.
const (
	childEnv           = "ROPEWALK_TEST_CHILD"
	childKeepsPortOpen = "ROPEWALK_TEST_CHILD_STAYS"
)

// TestUDPIsUsedWithoutRightToLoadPrograms uses a child process with all other capabilities.
func TestUDPIsUsedWithoutRightToLoadPrograms(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		runChild(t)
		return
	}
	requireXDP(t)
	s := newTestNet(t)
	out, err := s.runWithout(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN)
	if err != nil || !strings.Contains(out, "path udp") || !strings.Contains(out, "loading the XDP program") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// runWithout runs this test again, at here, in a process without the given capabilities.
func (s *testNet) runWithout(caps ...uintptr) (out string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with its reduced capabilities
		var ns netns.NsHandle
		if ns, err = netns.GetFromPath(s.here.Path()); err != nil {
			return
		}
		defer ns.Close()
		if err = netns.Set(ns); err != nil {
			return
		}
		for _, c := range caps {
			if err = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				return
			}
		}
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run=^"+s.Name()+"$")
		cmd.Env = append(os.Environ(), childEnv+"=1")
		var b []byte
		b, err = cmd.CombinedOutput()
		out = string(b)
	}()
	<-done
	return out, err
}

func runChild(t *testing.T) {
	u, err := udp.Open(udp.Config{Lanes: 1})
	expect.NoError(t, err)
	p, err := Open(Config{UDP: u, Mode: byXDP, Log: slog.New(slog.DiscardHandler)})
	expect.NoError(t, err)
	p.SetPeers(newPeers(farEndpoint))
	stays := os.Getenv(childKeepsPortOpen) != ""
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if r := p.Report(); r.Path == byXDP || !stays && r.Reason != notYet {
			break
		}
	}
	r := p.Report()
	fmt.Printf("path %v because %s\n", r.Path, r.Reason)
	if !stays {
		expect.NoError(t, p.Close())
	}
}
