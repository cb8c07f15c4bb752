// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestDaemonWithoutPortIsNotReady: it starts while another program has the port, and answers all the same.
func TestDaemonWithoutPortIsNotReady(t *testing.T) {
	dir, d := uapitest.NewDir(t), &uapitest.Device{}
	uapitest.Serve(t, dir, "wg0", d)
	for _, c := range []struct {
		up    bool
		stuck []string
		want  error
	}{{true, nil, nil}, {false, nil, errDown}, {false, []string{"rx1"}, errStuck}} {
		d.SetStats(map[string]any{"up": c.up, "stalls": config.StallReport{Lanes: c.stuck}})
		if err := checkDaemon(dir, "wg0"); !errors.Is(err, c.want) {
			t.Errorf("up %v, stuck %v: got %v, want %v", c.up, c.stuck, err, c.want)
		}
	}
}

// TestLivenessDoesNotDependOnPort: a container that starts again would find the same port taken.
func TestLivenessDoesNotDependOnPort(t *testing.T) {
	path := filepath.Join(string(uapitest.NewDir(t)), "socket")
	l, err := net.Listen("unix", path)
	expect.NoError(t, err)
	defer l.Close()
	for _, c := range []struct {
		answer       string
		ready, alive bool
	}{{readyOK, true, true}, {errDown.Error(), false, true}, {errStarting.Error(), false, false}} {
		for _, alive := range []bool{false, true} {
			go func() {
				if conn, err := l.Accept(); err == nil {
					_, _ = fmt.Fprintln(conn, c.answer)
					_ = conn.Close()
				}
			}()
			if err := checkReady(t.Context(), path, alive); (err == nil) != (c.ready || alive && c.alive) {
				t.Errorf("answer %q, alive %v: got %v", c.answer, alive, err)
			}
		}
	}
}
