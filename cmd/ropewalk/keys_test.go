// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// The private key in wg(8)'s manual page, and the output of wg pubkey for it.
const (
	manualPrivate = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="
	manualPublic  = "HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw="
)

// execute runs a command and returns its two outputs.
func execute(t *testing.T, cmd *cobra.Command, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err = cmd.Execute()
	return out.String(), errs.String(), err
}

func TestGenkeyPrintsClampedKey(t *testing.T) {
	stdout, stderr, err := execute(t, newGenkeyCmd(), "")
	if err != nil || stderr != "" || len(stdout) != 45 || !strings.HasSuffix(stdout, "=\n") {
		t.Fatalf("%d bytes, %q, %v", len(stdout), stderr, err)
	}
	key, err := noise.ParseBase64[noise.PrivateKey](strings.TrimSuffix(stdout, "\n"))
	if err != nil || key != key.Clamp() {
		t.Error("not a clamped key")
	}
	if again, _, _ := execute(t, newGenkeyCmd(), ""); again == stdout {
		t.Error("two calls print the same key")
	}
}

func TestGenpskPrintsKey(t *testing.T) {
	stdout, stderr, err := execute(t, newGenpskCmd(), "")
	if err != nil || stderr != "" || len(stdout) != 45 {
		t.Fatalf("%d bytes, %q, %v", len(stdout), stderr, err)
	}
}

func TestPubkeyAcceptsSameInputAsWG(t *testing.T) {
	for _, in := range []string{
		manualPrivate, manualPrivate + "\n", manualPrivate + "\n\n", manualPrivate + " \t\v\f\r\n", manualPrivate + "\x00",
	} {
		stdout, stderr, err := execute(t, newPubkeyCmd(), in)
		if stdout != manualPublic+"\n" || stderr != "" || err != nil {
			t.Errorf("%d bytes of input: got %q, %q, error %v, want %q, %q, no error", len(in), stdout, stderr, err, manualPublic+"\n", "")
		}
	}
	for _, in := range []string{
		"", "foo", " " + manualPrivate, manualPrivate[:43], manualPrivate + "x", manualPrivate + "\nx", manualPrivate + manualPrivate,
		strings.Repeat("A", 43) + "A", manualPrivate[:42] + "l=", manualPrivate + strings.Repeat(" ", maxKeyInput),
	} {
		stdout, _, err := execute(t, newPubkeyCmd(), in)
		if stdout != "" || err == nil || exitCode(err) != exitError {
			t.Errorf("%d bytes of input: got %q, error %v, want %q, an error", len(in), stdout, err, "")
		}
		if err != nil && strings.Contains(err.Error(), manualPrivate[:20]) {
			t.Error("the key is in the error")
		}
	}
}

func TestGenkeyWarnsAboutWorldAccessibleFile(t *testing.T) {
	const warning = "Warning: writing to world accessible file.\nConsider setting the umask to 077 and trying again.\n"
	for mode, want := range map[os.FileMode]string{0o600: "", 0o660: "", 0o644: warning, 0o601: warning} {
		f, err := os.Create(filepath.Join(t.TempDir(), "key"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Chmod(mode); err != nil {
			t.Fatal(err)
		}
		for name, cmd := range map[string]*cobra.Command{"genkey": newGenkeyCmd(), "genpsk": newGenpskCmd()} {
			var errs bytes.Buffer
			cmd.SetOut(f)
			cmd.SetErr(&errs)
			cmd.SetArgs(nil)
			if err := cmd.Execute(); err != nil || errs.String() != want {
				t.Errorf("%s to mode %v: got %q, error %v, want %q, no error", name, mode, errs.String(), err, want)
			}
		}
	}
}

func TestGenkeyFailsOnFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("needs /dev/full: ", err)
	}
	defer full.Close()
	cmd := newGenkeyCmd()
	cmd.SetOut(full)
	cmd.SetArgs(nil)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	if err := cmd.Execute(); err == nil {
		t.Error("genkey to a full disk succeeds")
	}
}

func TestKeyCommandsTakeNoArguments(t *testing.T) {
	for _, cmd := range []*cobra.Command{newGenkeyCmd(), newGenpskCmd(), newPubkeyCmd()} {
		if _, _, err := execute(t, cmd, manualPrivate, "extra"); err == nil || exitCode(err) != exitUsage {
			t.Errorf("%s: got error %v, want an error", cmd.Name(), err)
		}
	}
}
