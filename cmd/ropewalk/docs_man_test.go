// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
)

// TestManualHasPageForEveryCommand builds the generator, which only a program with the build tag docs has.
func TestManualHasPageForEveryCommand(t *testing.T) {
	compiler, err := exec.LookPath("go")
	if err != nil {
		t.Skip("needs the Go toolchain: ", err)
	}
	dir := t.TempDir()
	if out, err := exec.Command(compiler, "run", "-tags", "docs", ".", "docs", "man", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	walk(newRootCmd(), func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".8"
		text, err := os.ReadFile(filepath.Join(dir, "man8", name))
		if err != nil || !bytes.Contains(text, []byte(".SH EXAMPLE")) {
			t.Errorf("%s: got error %v, want none", name, err)
		}
	})
	conf, err := os.ReadFile(filepath.Join(dir, "man5", "ropewalk-conf.5"))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range conffile.Keys() {
		if !bytes.Contains(conf, []byte(".TP\n.B "+k.Name+"\n")) {
			t.Errorf("ropewalk-conf.5 has no key %s", k.Name)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("needs groff to check the pages: ", err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	// The default of --key is a word that fits in no line: no warnings about breaks.
	check := exec.Command(groff, append([]string{"-man", "-Tutf8", "-ww", "-Wbreak", "-z"}, pages...)...)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
}
