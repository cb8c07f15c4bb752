// SPDX-License-Identifier: Apache-2.0

package tun_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

// holderVariable makes the test binary open the interface of that name and wait to be killed.
const holderVariable = "ROPEWALK_TEST_HOLDS"

// TestHelperProcessOpensInterface is not a test: it is the process that holder starts.
func TestHelperProcessOpensInterface(t *testing.T) {
	name := os.Getenv(holderVariable)
	if name == "" {
		t.Skip("is the other process of TestNameOfAKilledProcessIsWaitedFor")
	}
	d, err := tun.Open(tun.Config{Name: name, Queues: 16, Persist: strings.HasPrefix(name, "rwstay")})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	os.Stdout.WriteString("ready\n")
	select {}
}

// holder is another process that has an interface. It must be started on the test's thread, whose namespace it gets.
func holder(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestHelperProcessOpensInterface$")
	c.Env = append(os.Environ(), holderVariable+"="+name)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Process.Kill(), c.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "ready" {
			return c
		}
	}
	t.Fatal("the other process has not opened its interface")
	return nil
}

func TestOpenWaitsForKilledOwner(t *testing.T) {
	for kind, persist := range map[string]bool{"rwgone": false, "rwstay": true} {
		t.Run(kind, func(t *testing.T) {
			enterNamespace(t)
			name := fmt.Sprint(kind, os.Getpid())
			c := holder(t, name)
			var log bytes.Buffer
			config := tun.Config{Name: name, Queues: 2, Persist: persist, Log: slog.New(slog.NewTextHandler(&log, nil))}
			if d, err := tun.Open(config); !errors.Is(err, syscall.EBUSY) {
				if err == nil {
					d.Close()
				}
				t.Fatalf("while the other process lives: got error %v, want %v", err, syscall.EBUSY)
			}
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			d, err := tun.Open(config)
			tries := 2
			for end := time.Now().Add(time.Minute); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); tries++ {
				d, err = tun.Open(config) // a busy machine takes longer to end a process, or to begin with it
			}
			if err != nil {
				t.Fatal(err)
			}
			if persist {
				defer tun.Remove(name)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if n := strings.Count(log.String(), "waiting"); n > tries {
				t.Errorf("logged %d times in %d attempts", n, tries)
			}
		})
	}
}
