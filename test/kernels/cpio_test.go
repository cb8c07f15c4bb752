// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func sampleArchive(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	c := newCPIOWriter(&b)
	c.File("/init", 0o755, []byte("abc"))
	c.File("usr/lib/x", 0o644, nil)
	c.File("/usr/lib/y", 0o644, []byte("odd length"))
	c.Symlink("/bin/sh", "busybox")
	c.CharDevice("/dev/console", 5, 1)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestCPIOReadsArchive(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox: its cpio is the oracle (apt package busybox-static)")
	}
	cmd := exec.Command(busybox, "cpio", "-tv")
	cmd.Stdin = bytes.NewReader(sampleArchive(t))
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("cpio rejected the archive: %v", err)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		got = append(got, f[0]+" "+strings.Join(f[5:], " "))
	}
	want := []string{
		"-rwxr-xr-x init", "drwxr-xr-x usr", "drwxr-xr-x usr/lib", "-rw-r--r-- usr/lib/x", "-rw-r--r-- usr/lib/y",
		"drwxr-xr-x bin", "lrwxrwxrwx bin/sh -> busybox", "drwxr-xr-x dev", "crw------- dev/console",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("entries (-want +got):\n%s\n%s", d, out)
	}
}

func TestArchiveEntriesAreFourByteAligned(t *testing.T) {
	b := sampleArchive(t)
	if len(b)%4 != 0 {
		t.Errorf("the archive has %d bytes", len(b))
	}
	for at, seen := 0, 0; seen < 10; seen++ { // 9 entries and the trailer
		i := bytes.Index(b[at:], []byte("070701"))
		if i < 0 {
			t.Fatalf("found %d headers, want those of 9 entries and the trailer", seen)
		}
		if at += i; at%4 != 0 {
			t.Errorf("entry %d starts at %d", seen, at)
		}
		at += 6
	}
}

// brokenWriter returns another error for each write.
type brokenWriter struct{ writes int }

func (w *brokenWriter) Write([]byte) (int, error) {
	w.writes++
	return 0, fmt.Errorf("write %d: disk full", w.writes)
}

func TestArchiveReportsFirstWriteError(t *testing.T) {
	c := newCPIOWriter(&brokenWriter{})
	c.File("x", 0o644, []byte("y"))
	if err := c.Close(); err == nil || !strings.Contains(err.Error(), "write 1: disk full") {
		t.Errorf("got error %v, want that of write 1", err)
	}
}
