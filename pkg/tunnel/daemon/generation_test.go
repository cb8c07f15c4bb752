// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestNewGenerationIsRecognised(t *testing.T) {
	for _, c := range []struct {
		event string
		want  bool
	}{
		{"change@/devices/LNXSYSTM:00/QEMUVGID:00\x00ACTION=change\x00DEVPATH=/devices/x\x00SUBSYSTEM=acpi\x00NEW_VMGENID=1\x00SEQNUM=7\x00", true},
		{"change@/devices/x\x00NEW_VMGENID=1", true},
		{"add@/devices/x\x00NEW_VMGENID=1\x00", false},
		{"change@/devices/x\x00NEW_VMGENID=10\x00", false},
		{"change@/devices/NEW_VMGENID=1\x00", false},
		{"change@/devices/NEW_VMGENID=1", false},
		{"libudev\x00\xfe\xed\xca\xfe", false},
		{"", false},
	} {
		if got := isNewGeneration([]byte(c.event)); got != c.want {
			t.Errorf("event %q: got %v, want %v", c.event, got, c.want)
		}
	}
}

// newGeneration is the event of vmgenid.
const newGeneration = "change@/devices/x\x00ACTION=change\x00NEW_VMGENID=1\x00"

// TestGenerationWatchReportsEvent sends the event of vmgenid to the sockets of a network namespace, as the kernel does to those of all.
func TestGenerationWatchReportsEvent(t *testing.T) {
	lab, err := netlab.New("generation")
	if errors.Is(err, netlab.ErrPrivileges) {
		t.Skip(err)
	}
	expect.NoError(t, err)
	defer lab.Close()
	host, err := lab.Host("a")
	expect.NoError(t, err)
	copied := make(chan struct{}, 1)
	expect.NoError(t, host.Do(func() error {
		if err := watchGeneration(t.Context(), slog.New(slog.DiscardHandler), func() { copied <- struct{}{} }); err != nil {
			return err
		}
		return sendUevent(newGeneration)
	}))
	<-copied
}

// sendUevent sends an event to all sockets of kernel events in the thread's network namespace.
func sendUevent(event string) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, []byte(event), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelEvents})
}

// TestGenerationWatchEndsWithItsContext: sockets of earlier tests may be closed meanwhile.
func TestGenerationWatchEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	before := openSockets(t)
	if err := watchGeneration(ctx, slog.New(slog.DiscardHandler), func() { t.Error("a new generation was reported") }); err != nil {
		t.Fatal(err)
	}
	var opened []string
	for socket := range openSockets(t) {
		if !before[socket] {
			opened = append(opened, socket)
		}
	}
	if len(opened) != 1 {
		t.Fatalf("got additional sockets %v, want 1", opened)
	}
	cancel()
	expect.Eventually(t, "the socket is closed", func() bool { return !openSockets(t)[opened[0]] })
}

// openSockets returns the sockets that this process has, by inode.
func openSockets(t *testing.T) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("needs /proc: ", err)
	}
	sockets := map[string]bool{}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			sockets[to] = true
		}
	}
	return sockets
}
