// SPDX-License-Identifier: Apache-2.0

package auto

import (
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

	"github.com/ropewalk/ropewalk/pkg/underlay/udp"
)

const childEnv = "ROPEWALK_TEST_WITHOUT_CAP_BPF"

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
	for end := time.Now().Add(deadline); p.Report().Reason == notYet && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	r := p.Report()
	fmt.Printf("way %v because %s\n", r.Way, r.Reason)
	must(t, p.Close())
}
