// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// answering serves the socket of lo: each connection gets the answer to its first line, and is closed.
func answering(t *testing.T, answer string) uapi.Dir {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "lo.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			bufio.NewReader(c).ReadString('\n')
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	return uapi.Dir(dir)
}

func TestSpreadStatusShowsErrorsOfDaemons(t *testing.T) {
	for name, c := range map[string]struct {
		answer        string
		daemons, fail bool
	}{
		"another WireGuard that closes":  {"", false, false},
		"another WireGuard with errno":   {"errno=-22\n\n", false, false},
		"a daemon that spreads":          {`{"spread":{"mode":"auto"}}` + "\nerrno=0\n\n", true, false},
		"a daemon whose answer is wrong": {"{\nerrno=0\n\n", false, true},
	} {
		list, err := spreadDaemons(answering(t, c.answer), "lo")
		if (len(list) > 0) != c.daemons || (err != nil) != c.fail {
			t.Errorf("%s: got %v, error %v", name, list, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := spreadDaemons(uapi.Dir(filepath.Join(dir, "file")), ""); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that cannot be read: got error %v", err)
	}
	for _, iface := range []string{"lo", "rwnobody"} {
		if list, err := spreadDaemons(uapi.Dir(dir), iface); len(list) > 0 || err != nil {
			t.Errorf("%s without a daemon: got %v, error %v", iface, list, err)
		}
	}
}
