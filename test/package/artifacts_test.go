// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestProgramsAreStaticForTheirArchitecture(t *testing.T) {
	for arch, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		f, err := elf.Open(artifact(t, "ropewalk-linux-"+arch))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if f.Machine != machine {
			t.Errorf("%s: machine %v, want %v", arch, f.Machine, machine)
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s: not static, has a segment %v", arch, p.Type)
			}
		}
	}
}

// TestSBOMListsProgramModules compares the SBOM with the build information in the program.
func TestSBOMListsProgramModules(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		path := artifact(t, "ropewalk-linux-"+arch)
		var doc struct {
			BOMFormat, SpecVersion, SerialNumber string
			Metadata                             struct {
				Component struct{ Hashes []struct{ Content string } }
			}
			Components []struct{ PURL string }
		}
		if err := json.Unmarshal(read(t, path+".cdx.json"), &doc); err != nil {
			t.Fatal(err)
		}
		if doc.BOMFormat != "CycloneDX" || doc.SpecVersion != "1.6" || !strings.HasPrefix(doc.SerialNumber, "urn:uuid:") {
			t.Errorf("%s: got %+v", arch, doc)
		}
		if h := doc.Metadata.Component.Hashes; len(h) != 1 || h[0].Content != digest(t, path) {
			t.Errorf("%s: the SBOM's hash differs from the program's: got %v, want length 1", arch, h)
		}
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := len(doc.Components), len(info.Deps)+1; got != want || got < 10 {
			t.Errorf("%s: got %d components, want %d", arch, got, want)
		}
		for i, dep := range info.Deps {
			if got, want := doc.Components[i+1].PURL, "pkg:golang/"+dep.Path+"@"+dep.Version; got != want {
				t.Errorf("%s: got %s, want %s", arch, got, want)
			}
		}
	}
}

func TestChecksumsMatchFiles(t *testing.T) {
	sums := string(read(t, artifact(t, "SHA256SUMS")))
	for _, path := range []string{program(t), program(t) + ".cdx.json", deb(t)} {
		if want := digest(t, path) + "  " + filepath.Base(path) + "\n"; !strings.Contains(sums, want) {
			t.Errorf("no %q in\n%s", want, sums)
		}
	}
}

// TestBuildIsReproducible builds the program in two directories, and the package a second time.
func TestBuildIsReproducible(t *testing.T) {
	if *dist == "" {
		t.Skip("takes long: run make test-package")
	}
	needTool(t, "make")
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
	made := exec.Command("make", "deb-amd64", "DIST="+dir, "STAGE="+t.TempDir(), "VERSION="+version(t))
	made.Dir = root
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{filepath.Base(artifact(t, "ropewalk_*_amd64.deb")), "ropewalk-linux-amd64", "ropewalk-linux-amd64.cdx.json"} {
		if digest(t, filepath.Join(dir, name)) != digest(t, filepath.Join(*dist, name)) {
			t.Error(name, "differs when it is built again")
		}
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
