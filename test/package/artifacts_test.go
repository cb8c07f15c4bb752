// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestProgramsAreStaticForTheirArchitecture(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, name := range programs() {
		f, err := elf.Open(artifact(t, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if want := machines[name[len(name)-5:]]; f.Machine != want {
			t.Errorf("%s: machine %v, want %v", name, f.Machine, want)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s: not static, has a segment %v", name, p.Type)
			}
		}
	}
}

// programs returns the names of the static programs.
func programs() []string {
	return []string{"ropewalk-linux-amd64", "ropewalk-linux-arm64", "ropewalk-agent-linux-amd64", "ropewalk-agent-linux-arm64"}
}

// TestSBOMListsProgramModules compares the SBOM with the build information in the program.
func TestSBOMListsProgramModules(t *testing.T) {
	for _, name := range programs() {
		path := artifact(t, name)
		var doc struct {
			BOMFormat string
			Metadata  struct {
				Properties []struct{ Name, Value string }
			}
			Components []struct{ PURL string }
		}
		if err := json.Unmarshal(read(t, path+".cdx.json"), &doc); err != nil {
			t.Fatal(err)
		}
		if sum := (struct{ Name, Value string }{"cdx:gomod:binary:hash:SHA-256", digest(t, path)}); doc.BOMFormat != "CycloneDX" || !slices.Contains(doc.Metadata.Properties, sum) {
			t.Errorf("%s: the SBOM is not CycloneDX with the program's hash %s: %+v", name, sum.Value, doc.Metadata)
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"pkg:golang/std@" + info.GoVersion}
		for _, dep := range info.Deps {
			want = append(want, "pkg:golang/"+dep.Path+"@"+dep.Version)
		}
		var got []string
		for _, c := range doc.Components {
			got = append(got, c.PURL)
		}
		if slices.Sort(got); len(got) < 10 || !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("%s: got components %q, want %q", name, got, want)
		}
	}
}

// TestChecksumsCoverRelease compares SHA256SUMS with the files of the release, both ways. It lists the kinds of artifacts, so that none is missing.
func TestChecksumsCoverRelease(t *testing.T) {
	var want strings.Builder
	sums := artifact(t, "SHA256SUMS")
	entries, err := os.ReadDir(filepath.Dir(sums))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "SHA256SUMS" {
			fmt.Fprintf(&want, "%s  %s\n", digest(t, artifact(t, e.Name())), e.Name())
		}
	}
	if got := string(read(t, sums)); got != want.String() {
		t.Errorf("SHA256SUMS:\n%s\nthe files:\n%s", got, &want)
	}
	for _, name := range programs() {
		artifact(t, name+".cdx.json")
	}
	for _, pattern := range []string{
		"ropewalk_*_amd64.deb", "ropewalk_*_arm64.deb", "ropewalk-[0-9]*.x86_64.rpm", "ropewalk-[0-9]*.aarch64.rpm", "ropewalk-image.tar",
		"ropewalk-agent_*_amd64.deb", "ropewalk-agent_*_arm64.deb", "ropewalk-agent-*.x86_64.rpm", "ropewalk-agent-*.aarch64.rpm",
		"ropewalk-agent-image.tar", "ropewalk-spread-*.tgz", "ropewalk-mesh-*.tgz", "ropewalk-crds-*.tgz", "ropewalk-kustomize-*.tar.gz",
		"ropewalk-kubectl-linux-amd64.tar.gz", "ropewalk-kubectl-linux-arm64.tar.gz", "ropewalk.yaml",
	} {
		artifact(t, pattern)
	}
}

// TestProgramIgnoresBuildDirectory builds the program in two directories.
func TestProgramIgnoresBuildDirectory(t *testing.T) {
	if *dist == "" {
		t.Skip("takes long: run make test-package")
	}
	elsewhere, dir := t.TempDir(), t.TempDir()
	root := filepath.Join("..", "..")
	output(t, "cp", "-r", filepath.Join(root, "go.mod"), filepath.Join(root, "go.sum"), filepath.Join(root, "cmd"), filepath.Join(root, "pkg"), elsewhere)
	var sums []string
	for i, from := range []string{root, elsewhere} {
		to := filepath.Join(dir, string(rune('a'+i)))
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", to, "./cmd/ropewalk")
		build.Dir, build.Env = from, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		sums = append(sums, digest(t, to))
	}
	if sums[0] != sums[1] {
		t.Error("the program depends on the build directory")
	}
}

// TestReleaseIsReproducible builds everything a second time: later, in another directory, under another umask.
func TestReleaseIsReproducible(t *testing.T) {
	sums := string(read(t, artifact(t, "SHA256SUMS")))
	needTool(t, "buildah")
	dir := t.TempDir()
	release := exec.Command("sh", "-c", `umask 077; exec make release DIST="$0/dist" STAGE="$0/stage" VERSION="$1"`, dir, version(t))
	release.Dir = filepath.Join("..", "..")
	if out, err := release.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if again := string(read(t, filepath.Join(dir, "dist", "SHA256SUMS"))); again != sums {
		t.Errorf("the first build:\n%s\nthe second:\n%s", sums, again)
	}
}

// TestVersionsSortAsReleases derives the versions of packages, charts and images from what `git describe` prints. dpkg orders those of packages.
func TestVersionsSortAsReleases(t *testing.T) {
	needTool(t, "make")
	needTool(t, "dpkg")
	last := "0.0.0~"
	for _, c := range []struct{ described, chart, pkg, tag string }{
		{"0123456", `0.0.0-git\d*-0123456`, `0.0.0~git\d*.0123456`, `0.0.0-git\d*-0123456`},
		{"v0.2.0-rc.1", "0.2.0-rc.1", "0.2.0~rc.1", "0.2.0-rc.1"},
		{"v0.2.0-rc.1-3-gabc1234", "0.2.0-rc.1+3-gabc1234", "0.2.0~rc.1+3.gabc1234", "0.2.0-rc.1-3-gabc1234"},
		{"v0.2.0", "0.2.0", "0.2.0", "0.2.0"},
		{"v0.2.0-dirty", "0.2.0+dirty", "0.2.0+dirty", "0.2.0-dirty"},
		{"v0.2.1", "0.2.1", "0.2.1", "0.2.1"},
		{"v0.2.1-5-gabc1234-dirty", "0.2.1+5-gabc1234-dirty", "0.2.1+5.gabc1234.dirty", "0.2.1-5-gabc1234-dirty"},
	} {
		out := output(t, "make", "-s", "-C", "../..", "--no-print-directory", "--eval", "versions:;@echo '$(SEMVER) $(PACKAGE_VERSION) $(IMAGE_TAG)'", "versions", "VERSION="+c.described)
		want := regexp.MustCompile("^" + strings.NewReplacer(".", `\.`, "+", `\+`).Replace(c.chart+" "+c.pkg+" "+c.tag) + "\n$")
		if !want.MatchString(out) {
			t.Errorf("%s: %q, want %s", c.described, out, want)
			continue
		}
		pkg := strings.Fields(out)[1]
		output(t, "dpkg", "--compare-versions", last, "lt", pkg)
		last = pkg
	}
}

// version returns the version of the program for this machine.
func version(t *testing.T) string {
	t.Helper()
	words := strings.Fields(output(t, program(t), "--version"))
	return words[len(words)-1]
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func digest(t *testing.T, path string) string {
	t.Helper()
	sum := sha256.Sum256(read(t, path))
	return hex.EncodeToString(sum[:])
}
