// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// awaitSyscall waits until a thread of this process blocks in the given system call.
func awaitSyscall(t *testing.T, tid, number int) {
	t.Helper()
	path := fmt.Sprintf("/proc/self/task/%d/syscall", tid)
	expect.Eventually(t, fmt.Sprintf("thread %d blocks in system call %d", tid, number), func() bool {
		state, err := os.ReadFile(path)
		if err != nil {
			t.Skipf("needs %s: %v", path, err)
		}
		return strings.HasPrefix(string(state), fmt.Sprint(number, " "))
	})
}

// TestCloseWakesBlockedReceiver tests shutdown(2) on an unconnected socket. It returns ENOTCONN, but must wake the
// receiver.
func TestCloseWakesBlockedReceiver(t *testing.T) {
	for _, c := range []Config{{}, {NoIPv6: true}, {BusyPoll: true}} {
		p := open(t, c)
		tid, result := make(chan int), make(chan error, 1)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			tid <- unix.Gettid()
			_, err := p.Lane(0).Recv([]underlay.Datagrams{{Buf: make([]byte, 65535)}})
			result <- err
		}()
		awaitSyscall(t, <-tid, unix.SYS_PPOLL)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-result; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Recv returned %v", err)
		}
	}
}

// TestCloseWakesSenderBlockedByBackpressure limits the loopback device to a very low rate, so that the send buffer
// fills.
func TestCloseWakesSenderBlockedByBackpressure(t *testing.T) {
	for _, source := range []bool{false, true} {
		t.Run(fmt.Sprint("from a source ", source), func(t *testing.T) { closeWakesASender(t, source) })
	}
}

func closeWakesASender(t *testing.T, fromSource bool) {
	slowLoopback(t)
	p := open(t, Config{SendBuffer: 10000})
	to := loopback(p, false)
	source := 0
	if fromSource {
		source = openSource(t, p)
	}
	tid, result := make(chan int), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tid <- unix.Gettid()
		runs := []underlay.Run{{To: &to, Parts: [][]byte{make([]byte, 1400)}, Segments: 1, Source: source}}
		for p.Lane(0).Send(runs) == 0 {
		}
		result <- runs[0].Err
	}()
	awaitBlocked(t, <-tid)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send returned %v", err)
	}
}

// awaitBlocked waits until a thread has slept in one sendmsg call for a while. If it returns too early, the test proves
// less, but does not fail.
func awaitBlocked(t *testing.T, tid int) {
	t.Helper()
	for range 20 {
		awaitSyscall(t, tid, unix.SYS_SENDMSG)
	}
}
