// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"io/fs"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
)

// procFS is the filesystem of one process, which has a queue of wg0.
func procFS(status, flags string) fstest.MapFS {
	return fstest.MapFS{
		"self":        {Mode: fs.ModeSymlink, Data: []byte("42")},
		"42/fd/3":     {Mode: fs.ModeSymlink, Data: []byte("/dev/null")},
		"42/fd/4":     {Mode: fs.ModeSymlink, Data: []byte("/dev/net/tun")},
		"42/fdinfo/3": {Data: []byte("pos:\t0\n")},
		"42/fdinfo/4": {Data: []byte("pos:\t0\nflags:\t02104002\nmnt_id:\t27\niff:\twg0\n")},
		"42/status":   {Data: []byte("Name:\trope walk\nState:\t" + status)},

		"42/task/42/status": {Data: []byte("Name:\trope walk\nState:\tS (sleeping)\nSigPnd:\t0\nShdPnd:\t0\n")},
		"42/task/42/stat":   {Data: []byte("42 (rope) walk) R 1 42 42 0 -1 4194304 101 0 0 0\n")},
		"42/task/43/status": {Data: []byte("Name:\trope walk\nState:\t" + status)},
		"42/task/43/stat":   {Data: []byte("43 (rope) walk) R 1 42 42 0 -1 " + flags + " 101 0 0 0\n")},
	}
}

func TestOnlyLiveProcessCountsAsOwner(t *testing.T) {
	const sleeping = "S (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n"
	without := func(proc fstest.MapFS, prefix string) fstest.MapFS {
		maps.DeleteFunc(proc, func(path string, _ *fstest.MapFile) bool { return strings.HasPrefix(path, prefix) })
		return proc
	}
	short := procFS(sleeping, "")
	short["42/task/43/stat"] = &fstest.MapFile{Data: []byte("43 (")}
	for about, c := range map[string]struct {
		proc fs.FS
		name string
		want bool
	}{
		"it is live":                    {procFS(sleeping, "4194304"), "wg0", true},
		"another interface":             {procFS(sleeping, "4194304"), "wg1", false},
		"part of its name":              {procFS(sleeping, "4194304"), "wg", false},
		"it is exiting":                 {procFS(sleeping, "4194308"), "wg0", false},
		"flags that are no number":      {procFS(sleeping, "?"), "wg0", true},
		"it was killed":                 {procFS("S\nSigPnd:\t0\nShdPnd:\t0000000000000100\n", "4194304"), "wg0", false},
		"its thread was killed":         {procFS("S\nSigPnd:\t0000000000004100\nShdPnd:\t0\n", "4194304"), "wg0", false},
		"another signal is pending":     {procFS("S\nSigPnd:\t0000000000004000\nShdPnd:\t0\n", "4194304"), "wg0", true},
		"a zombie":                      {procFS("Z (zombie)\n", "4194304"), "wg0", false},
		"it has exited meanwhile":       {without(procFS(sleeping, "4194304"), "42/status"), "wg0", false},
		"exited a moment later":         {without(procFS(sleeping, "4194304"), "42/task"), "wg0", false},
		"a thread has exited meanwhile": {without(procFS(sleeping, "4194308"), "42/task/43"), "wg0", true},
		"its file was closed meanwhile": {without(procFS(sleeping, "4194304"), "42/fdinfo/4"), "wg0", false},
		"no process":                    {fstest.MapFS{"1/status": {Data: []byte("State:\tS\n")}}, "wg0", false},
		"no proc filesystem":            {missingProc{}, "wg0", true},
		"a stat without flags":          {short, "wg0", true},
	} {
		if got := hasLiveOwner(c.proc, c.name); got != c.want {
			t.Errorf("%s: got %v, want %v", about, got, c.want)
		}
	}
}

// missingProc is an empty mount point.
type missingProc struct{}

func (missingProc) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
