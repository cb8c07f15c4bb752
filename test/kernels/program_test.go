// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

func TestProgramIsAddedWithSharedLibraries(t *testing.T) {
	path, err := exec.LookPath("nft")
	if err != nil {
		t.Skipf("needs nft(8): %v", err)
	}
	found, err := sharedLibraries(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for in, host := range found {
		names = append(names, in)
		if _, needed, err := dynamic(host); err != nil {
			t.Error(err)
		} else {
			for _, n := range needed {
				if found["/lib/x86_64-linux-gnu/"+n] == "" {
					t.Errorf("%s needs %s, which was not added", host, n)
				}
			}
		}
	}
	if all := strings.Join(names, " "); !strings.Contains(all, "/ld-linux") || !strings.Contains(all, "/libc.so.6") {
		t.Errorf("no libc or no interpreter: got %s, want %q in it", all, "/ld-linux")
	}
	var archive bytes.Buffer
	c := newCPIOWriter(&archive)
	if err := addProgram(c, "nft"); err != nil || c.Close() != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(archive.Bytes(), []byte("usr/bin/nft\x00")) {
		t.Error("the program is not in the archive")
	}
	if addProgram(c, "no-such-program") == nil {
		t.Error("no error for a missing program")
	}
}
