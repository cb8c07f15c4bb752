// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/test/expect"
)

func socketPath(name string) string { return filepath.Join(string(uapi.DefaultDir), name+".sock") }

// enterForDaemonsAlone is enterForDaemons with a /run of the test's own: it removes the directory of all daemons' sockets.
func enterForDaemonsAlone(t *testing.T) string {
	t.Helper()
	name := enterForDaemons(t)
	expect.NoError(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	expect.NoError(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
	return name
}

// mustEnd waits until a daemon has ended in order, with its interface.
func (p *process) mustEnd(t *testing.T, name string) {
	t.Helper()
	expect.NoError(t, p.Wait())
	if _, err := hostnet.FindLink(name); !errors.Is(err, hostnet.ErrNoLink) {
		t.Errorf("interface %s: got %v, want %v", name, err, hostnet.ErrNoLink)
	}
}

// TestRemovedSocketEndsDaemon: programs for wireguard-go stop a tunnel so.
func TestRemovedSocketEndsDaemon(t *testing.T) {
	for how, remove := range map[string]func(t *testing.T, path string){
		"file":      func(t *testing.T, path string) { expect.NoError(t, os.Remove(path)) },
		"directory": func(t *testing.T, path string) { expect.NoError(t, os.RemoveAll(filepath.Dir(path))) },
		"replaced by another daemon's": func(t *testing.T, path string) {
			l, err := net.Listen("unix", path+".new")
			expect.NoError(t, err)
			t.Cleanup(func() { l.Close() })
			expect.NoError(t, os.Rename(path+".new", path))
		},
	} {
		t.Run(how, func(t *testing.T) {
			name := enterForDaemonsAlone(t)
			p := launch(t, name)
			remove(t, socketPath(name))
			p.mustEnd(t, name)
			if how == "replaced by another daemon's" {
				if _, err := os.Lstat(socketPath(name)); err != nil {
					t.Errorf("the other daemon's socket: %v", err)
				}
			}
		})
	}
}

// TestRenamedSocketServesOn: the socket of a renamed interface may be renamed with it.
func TestRenamedSocketServesOn(t *testing.T) {
	name := enterForDaemons(t)
	p := launch(t, name)
	expect.NoError(t, os.Rename(socketPath(name), socketPath(name+"x")))
	expect.NoError(t, os.Chmod(socketPath(name+"x"), 0o660)) // an event of the file that is no removal
	expect.NoError(t, answers(name+"x"))
	expect.NoError(t, os.Remove(socketPath(name+"x")))
	p.mustEnd(t, name)
}

// TestKeptSocketIsCreatedAgain: a service survives a cleaned directory, again and again, and can still be upgraded.
func TestKeptSocketIsCreatedAgain(t *testing.T) {
	name := enterForDaemonsAlone(t)
	p := launch(t, name, keepEnv+"=1")
	back := func() error { return answers(name) }
	for range 3 {
		expect.NoError(t, os.Remove(socketPath(name)))
		expect.EventuallyNoError(t, "the socket is back", back)
	}
	expect.NoError(t, os.RemoveAll(string(uapi.DefaultDir)))
	expect.EventuallyNoError(t, "the directory is back", back)
	successor := launch(t, name, takeoverEnv+"=1") // from a shell: it has no KeepSocket of its own
	expect.NoError(t, p.Wait())
	expect.NoError(t, os.Remove(socketPath(name)))
	expect.EventuallyNoError(t, "the successor's socket is back", back)
	successor.stop(t)
	if _, err := os.Lstat(socketPath(name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the end: got %v, want no socket", err)
	}
}

// TestUpgradeKeepsSocketUntilSuccessorEnds: the predecessor's end removes nothing, and the successor notices a removal, too.
func TestUpgradeKeepsSocketUntilSuccessorEnds(t *testing.T) {
	name := enterForDaemons(t)
	predecessor := launch(t, name)
	before, err := os.Lstat(socketPath(name))
	expect.NoError(t, err)
	successor := launch(t, name, takeoverEnv+"=1")
	expect.NoError(t, predecessor.Wait())
	if after, err := os.Lstat(socketPath(name)); err != nil || !os.SameFile(before, after) {
		t.Errorf("the socket's file has changed, or gone: %v", err)
	}
	expect.NoError(t, answers(name))
	expect.NoError(t, os.Remove(socketPath(name)))
	successor.mustEnd(t, name)
}
