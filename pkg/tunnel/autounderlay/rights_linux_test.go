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
)

// TestAKilledProcessLeavesNothingBehind has a child process open the port that is not there to close it.
func TestAKilledProcessLeavesNothingBehind(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		beTheChild(t)
		select {} // retryAt killed
	}
	requireXDP(t)
	s := newScene(t)
	cmd := s.here.Command(t.Context(), os.Args[0], "-test.v", "-test.run=^"+s.Name()+"$")
	cmd.Env = append(os.Environ(), childEnv+"=1", childStays+"=1")
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	ready := false
	for lines := bufio.NewScanner(out); !ready && lines.Scan(); {
		ready = strings.HasPrefix(lines.Text(), "way xdp")
	}
	if !ready || s.attached(s.dev) == 0 {
		t.Errorf("ready %v, program %d", ready, s.attached(s.dev))
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	for end := time.Now().Add(deadline); s.attached(s.dev) != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the program is left behind")
		}
	}
}

// childEnv is set for a child process, and childStays for one that ends with its port open.
const (
	childEnv   = "ROPEWALK_TEST_CHILD"
	childStays = "ROPEWALK_TEST_CHILD_STAYS"
)

// TestWithoutTheRightToLoadProgramsItGoesByUDP has a child process with the rights for everything else.
func TestWithoutTheRightToLoadProgramsItGoesByUDP(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		beTheChild(t)
		return
	}
	requireXDP(t)
	s := newScene(t)
	out, err := s.deprived(unix.CAP_BPF, unix.CAP_PERFMON, unix.CAP_SYS_ADMIN)
	if err != nil || !strings.Contains(out, "way udp") || !strings.Contains(out, "loading the XDP program") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// deprived runs this test again, at here, in a process without capabilities that it names.
func (s *scene) deprived(caps ...uintptr) (out string, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocks: the thread ends with its lack of rights
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

func beTheChild(t *testing.T) {
	u, err := udp.Open(udp.Config{Lanes: 1})
	must(t, err)
	p, err := Open(Config{UDP: u, Mode: byXDP, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	p.AddSource(farAt.Addr())
	p.SetGuarded()
	stays := os.Getenv(childStays) != ""
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if r := p.Report(); r.Path == byXDP || !stays && r.Reason != notYet {
			break
		}
	}
	r := p.Report()
	fmt.Printf("way %v because %s\n", r.Path, r.Reason)
	if !stays {
		must(t, p.Close())
	}
}
