// SPDX-License-Identifier: Apache-2.0

package tuntest_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"testing/synctest"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
)

func TestFakeContract(t *testing.T) {
	tuntest.RunContract(t, func(t *testing.T, queues int) tuntest.Subject {
		f := tuntest.NewFake(tuntest.FakeConfig{Queues: queues})
		t.Cleanup(func() { _ = f.Close() })
		return tuntest.Subject{
			Device: f, SetUp: f.SetUp, SetMTU: f.SetMTU, Delete: f.Delete,
			Inject: func(packet []byte) {
				if err := f.Inject(0, append(make([]byte, offload.VnetHdrLen), packet...)); err != nil {
					t.Fatal(err)
				}
			},
			Receive: func() []byte { return receiveAny(t, f) },
		}
	})
}

// receiveAny returns the packet that waits in some queue.
func receiveAny(t *testing.T, f *tuntest.Fake) []byte {
	t.Helper()
	buf := make([]byte, tun.MaxTrain)
	for i := range f.Queues() {
		if n := f.TryReceive(i, buf); n > 0 {
			return buf[offload.VnetHdrLen:n]
		}
	}
	t.Fatal("nothing was written")
	return nil
}

func TestFakeReceiveWaitsUntilCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := tuntest.NewFake(tuntest.FakeConfig{})
		train := append(make([]byte, offload.VnetHdrLen), 0x45)
		go func() {
			synctest.Wait() // Receive waits by now
			if err := f.Queues()[0].Write([][]byte{train}); err != nil {
				t.Error(err)
			}
		}()
		got, err := f.Receive(t.Context(), 0)
		if err != nil || len(got) != len(train) {
			t.Errorf("Receive = % x, %v", got, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		if _, err := f.Receive(ctx, 0); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled Receive: got error %v, want %v", err, context.Canceled)
		}
		f.Close()
		if _, err := f.Receive(t.Context(), 0); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Receive after Close: got error %v, want %v", err, os.ErrClosed)
		}
	})
}

func TestFakeReceiveReturnsTrainsWrittenBeforeClose(t *testing.T) {
	f := tuntest.NewFake(tuntest.FakeConfig{})
	train := append(make([]byte, offload.VnetHdrLen), 0x45)
	if err := f.Queues()[0].Write([][]byte{train}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got, err := f.Receive(t.Context(), 0); err != nil || len(got) != len(train) {
		t.Errorf("Receive = % x, %v", got, err)
	}
	if _, err := f.Receive(t.Context(), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Receive: got error %v, want %v", err, os.ErrClosed)
	}
}

func TestFakeQueueReturnsENOBUFSWhenFull(t *testing.T) {
	f := tuntest.NewFake(tuntest.FakeConfig{Depth: 2})
	train := append(make([]byte, offload.VnetHdrLen), 0x45)
	for i := range 3 {
		if err := f.Inject(0, train); (err != nil) != (i == 2) {
			t.Errorf("Inject %d: %v", i, err)
		}
		if err := f.Queues()[0].Write([][]byte{train}); (err != nil) != (i == 2) {
			t.Errorf("Write %d: %v", i, err)
		}
	}
}
