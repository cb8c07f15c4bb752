// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// files returns the files that a package installs, by path.
func files(t *testing.T, deb string) map[string]*tar.Header {
	t.Helper()
	all, err := exec.Command("dpkg-deb", "--fsys-tarfile", deb).Output()
	if err != nil {
		t.Fatal("dpkg-deb: ", err)
	}
	found := map[string]*tar.Header{}
	for r := tar.NewReader(bytes.NewReader(all)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(h.Name, ".")] = h
	}
}

func TestDebFilesAreWritableOnlyByRoot(t *testing.T) {
	needTool(t, "dpkg-deb")
	found := files(t, deb(t))
	for path, mode := range map[string]int64{
		"/usr/bin/ropewalk":                                  0o755,
		"/usr/lib/systemd/system/ropewalk@.service":          0o644,
		"/usr/lib/systemd/system/ropewalk-spread@.service":   0o644,
		"/usr/lib/systemd/system/ropewalk-engine@.service":   0o644,
		"/usr/share/man/man8/ropewalk.8.gz":                  0o644,
		"/usr/share/man/man5/ropewalk-conf.5.gz":             0o644,
		"/usr/lib/NetworkManager/conf.d/90-ropewalk.conf":    0o644,
		"/usr/lib/systemd/network/10-ropewalk.network":       0o644,
		"/usr/share/doc/ropewalk/networkd.conf":              0o644,
		"/usr/share/man/man8/ropewalk-reload.8.gz":           0o644,
		"/usr/share/bash-completion/completions/ropewalk":    0o644,
		"/usr/share/zsh/vendor-completions/_ropewalk":        0o644,
		"/usr/share/fish/vendor_completions.d/ropewalk.fish": 0o644,
		"/usr/share/doc/ropewalk/copyright":                  0o644,
		"/usr/share/doc/ropewalk/ropewalk.cdx.json":          0o644,
		"/etc/default/ropewalk":                              0o644,
		"/etc/wireguard/":                                    0o700,
		"/etc/ropewalk/":                                     0o755,
	} {
		if h := found[path]; h == nil || h.Mode&0o7777 != mode {
			t.Errorf("%s: got %+v, want mode %o", path, h, mode)
		}
	}
	for path, h := range found {
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o6022 != 0 || h.Typeflag == tar.TypeReg && h.Size == 0 {
			t.Errorf("%s: %d:%d, mode %o, %d bytes", path, h.Uid, h.Gid, h.Mode, h.Size)
		}
	}
}

// TestAgentDebHasProgram: `ropewalk mesh` looks for the program beside its own, and kubectl for a plugin's name.
func TestAgentDebHasProgram(t *testing.T) {
	needTool(t, "dpkg-deb")
	for _, arch := range []string{"amd64", "arm64"} {
		found := files(t, artifact(t, "ropewalk-agent_*_"+arch+".deb"))
		for path, mode := range map[string]int64{
			"/usr/bin/ropewalk-agent": 0o755, "/usr/share/doc/ropewalk-agent/copyright": 0o644, "/usr/share/doc/ropewalk-agent/ropewalk-agent.cdx.json": 0o644,
		} {
			if h := found[path]; h == nil || h.Mode&0o7777 != mode || h.Size == 0 || h.Uid != 0 {
				t.Errorf("%s %s: got %+v, want mode %o", arch, path, h, mode)
			}
		}
		if h := found["/usr/bin/kubectl-ropewalk"]; h == nil || h.Linkname != "ropewalk-agent" {
			t.Errorf("%s: got %+v, want a link to ropewalk-agent", arch, h)
		}
	}
}

func TestDebMetadataIsValid(t *testing.T) {
	needTool(t, "dpkg-deb")
	for _, arch := range []string{"amd64", "arm64"} {
		path := artifact(t, "ropewalk_*_"+arch+".deb")
		if got := strings.TrimSpace(output(t, "dpkg-deb", "-f", path, "Architecture")); got != arch {
			t.Errorf("architecture %q, want %q", got, arch)
		}
		version := strings.TrimSpace(output(t, "dpkg-deb", "-f", path, "Version"))
		output(t, "dpkg", "--validate-version", version)
	}
}

// TestDebKeepsAdministratorFiles installs, upgrades, removes and purges the package below a temporary root directory.
func TestDebKeepsAdministratorFiles(t *testing.T) {
	needRoot(t)
	needTool(t, "dpkg")
	root := t.TempDir()
	for _, dir := range []string{"info", "updates", "triggers"} {
		if err := os.MkdirAll(filepath.Join(root, "var/lib/dpkg", dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"status", "available"} {
		if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg", file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dpkg := func(args ...string) {
		t.Helper()
		output(t, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--force-confold"}, args...)...)
	}
	dpkg("-i", deb(t))
	if got := output(t, filepath.Join(root, "usr/bin/ropewalk"), "--version"); !strings.Contains(got, "ropewalk version") {
		t.Errorf("version: got %q, want %q in it", got, "ropewalk version")
	}
	edited := map[string]string{"etc/default/ropewalk": "ARGS=--log-format json\n", "etc/wireguard/wg0.conf": "[Interface]\n"}
	for name, text := range edited {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dpkg("-i", deb(t))
	dpkg("-r", "ropewalk")
	for name, text := range edited {
		if got := string(read(t, filepath.Join(root, name))); got != text {
			t.Errorf("%s: got %q, want %q", name, got, text)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/bin/ropewalk")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the program still exists after removal: ", err)
	}
	dpkg("-P", "ropewalk")
	if _, err := os.Stat(filepath.Join(root, "etc/default/ropewalk")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the package's configuration still exists after a purge: ", err)
	}
	read(t, filepath.Join(root, "etc/wireguard/wg0.conf"))
}
