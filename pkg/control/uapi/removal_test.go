// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi/uapitest"
)

// TestListenSurvivesToolsThatRemoveDeadSockets runs what wg(8) does with a socket that refuses its connection: it removes it. A new socket refuses
// them until it listens.
func TestListenSurvivesToolsThatRemoveDeadSockets(t *testing.T) {
	dir := uapitest.NewDir(t)
	path := string(dir) + "/wg0.sock"
	stop := make(chan struct{})
	var tools sync.WaitGroup
	defer tools.Wait()
	defer close(stop)
	for range 4 {
		tools.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				conn, err := net.Dial("unix", path)
				if err == nil {
					conn.Close()
				}
				if errors.Is(err, syscall.ECONNREFUSED) {
					os.Remove(path)
				}
			}
		})
	}
	for range 2000 {
		l, err := dir.Listen("wg0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
