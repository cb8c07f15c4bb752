// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// query returns the words that rpm prints about a package for a format, by line.
func query(t *testing.T, path, format string) [][]string {
	t.Helper()
	var lines [][]string
	for line := range strings.Lines(output(t, "rpm", "-qp", "--qf", format, path)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// TestRPMHasFilesOfDeb compares the two packages. In an .rpm, directories that belong to the distribution are no files.
func TestRPMHasFilesOfDeb(t *testing.T) {
	needTool(t, "rpm")
	needTool(t, "dpkg-deb")
	moved := strings.NewReplacer("/usr/share/zsh/vendor-completions/", "/usr/share/zsh/site-functions/", "/usr/share/doc/ropewalk/copyright", "/usr/share/licenses/ropewalk/copyright")
	want := map[string]string{"/usr/share/licenses/ropewalk": "drwxr-xr-x root:root dir"}
	for path, h := range files(t, deb(t)) {
		size, dir := fmt.Sprint(h.Size), strings.HasSuffix(path, "/")
		if dir {
			size = "dir"
		}
		if !dir || strings.HasSuffix(path, "/ropewalk/") || path == "/etc/wireguard/" {
			want[moved.Replace(strings.TrimSuffix(path, "/"))] = fmt.Sprintf("%v root:root %s", h.FileInfo().Mode(), size)
		}
	}
	got := map[string]string{}
	for _, f := range query(t, rpm(t), `[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILESIZES}\n]`) {
		if strings.HasPrefix(f[1], "d") {
			f[3] = "dir"
		}
		got[f[0]] = strings.Join(f[1:], " ")
	}
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got[path] != want[path] {
			t.Errorf("%s: %q, the .deb has %q", path, got[path], want[path])
		}
		delete(got, path)
	}
	if len(got) != 0 {
		t.Errorf("not in the .deb: %v", got)
	}
}

func TestRPMMetadataIsValid(t *testing.T) {
	needTool(t, "rpm")
	version := strings.TrimSpace(output(t, "dpkg-deb", "-f", deb(t), "Version"))
	for _, arch := range []string{"x86_64", "aarch64"} {
		path := artifact(t, "ropewalk-[0-9]*."+arch+".rpm")
		output(t, "rpm", "-K", path) // digests of header and payload
		got := strings.Join(query(t, path, `%{NAME} %{VERSION} %{RELEASE} %{ARCH} %{OS} %{LICENSE} %{BUILDHOST} %{RECOMMENDS}`)[0], " ")
		if want := "ropewalk " + version + " 1 " + arch + " linux Apache-2.0 ropewalk (nftables or iptables)"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		config := query(t, path, `[%{FILEFLAGS:fflags} %{FILENAMES}\n]`)
		if !slices.ContainsFunc(config, func(f []string) bool { return slices.Equal(f, []string{"cn", "/etc/default/ropewalk"}) }) {
			t.Errorf("%s: an upgrade replaces /etc/default/ropewalk", arch)
		}
	}
}
