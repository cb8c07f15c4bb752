// SPDX-License-Identifier: Apache-2.0

package uapi_test

import (
	"context"
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

// TestRemovalBeforeWatchIsNoticed also renames the file before anything watches it, which removes nothing.
func TestRemovalBeforeWatchIsNoticed(t *testing.T) {
	stopped := errors.New("stopped")
	for name, c := range map[string]struct {
		change func(path string) error
		want   error
	}{
		"removed": {os.Remove, nil},
		"renamed": {func(path string) error { return os.Rename(path, path+"x") }, stopped},
		"replaced": {func(path string) error {
			if err := os.WriteFile(path+"x", nil, 0o600); err != nil {
				return err
			}
			return os.Rename(path+"x", path)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := uapitest.NewDir(t)
			l, err := dir.Listen("wg0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := c.change(string(dir) + "/wg0.sock"); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancelCause(t.Context())
			stop(stopped)
			if err := l.AwaitRemoval(ctx); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}
