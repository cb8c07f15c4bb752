// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fakeCosign signs with a checksum, for the identity in SIGNER. It takes the options that release.sh gives to cosign.
const fakeCosign = `#!/bin/bash
set -e
command=$1 file=${!#} of=
shift
while [ $# -gt 1 ]; do
  case $1 in
  --bundle) bundle=$2 ;;
  --predicate) of=$(sha256sum <"$2") ;;
  --type) kind=$2 ;;
  --certificate-identity) identity=$2 ;;
  --certificate-oidc-issuer) issuer=$2 ;;
  esac
  shift
done
sum=$(sha256sum <"$file")
case $command in
sign-blob) echo "$sum" >"$bundle" ;;
attest-blob) echo "$kind $sum" >"$bundle" ;;
verify-blob) [ "$(cat "$bundle")" = "$sum" ] && [ "$identity" = tag ] && [ "$issuer" = issuer ] ;;
verify-blob-attestation) grep -qxF "$kind $sum" "$bundle" && [ "$identity" = tag ] && [ "$issuer" = issuer ] ;;
*) exit 1 ;;
esac
`

// release is a directory with the files of a release, and the environment of the program that signs them.
type release struct {
	dir string
	env []string
}

func newRelease(t *testing.T) *release {
	t.Helper()
	dir := t.TempDir()
	cosign := filepath.Join(dir, "cosign")
	if err := os.WriteFile(cosign, []byte(fakeCosign), 0o755); err != nil {
		t.Fatal(err)
	}
	r := &release{dir: filepath.Join(dir, "dist"), env: append(os.Environ(), "COSIGN="+cosign, "IDENTITY=tag", "ISSUER=issuer")}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var sums, provenance strings.Builder
	for _, name := range []string{
		"ropewalk-linux-amd64", "ropewalk-linux-amd64.cdx.json", "ropewalk-linux-arm64", "ropewalk-linux-arm64.cdx.json", "ropewalk-agent-linux-amd64.cdx.json",
		"ropewalk_1.0.0_arm64.deb", "ropewalk-1.0.0-1.aarch64.rpm", "ropewalk-agent_1.0.0_amd64.deb", "ropewalk-image.tar", "ropewalk-crds-1.0.0.tgz", "ropewalk.yaml",
	} {
		r.write(t, name, "content of "+name)
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte("content of "+name)))
		fmt.Fprintf(&sums, "%s  %s\n", sum, name)
		fmt.Fprintf(&provenance, "slsaprovenance1 %s  -\n", sum)
	}
	r.write(t, "SHA256SUMS", sums.String())
	r.write(t, "OCI-DIGESTS", "registry/ropewalk@sha256:0 ropewalk-image.tar")
	r.write(t, "ropewalk.openvex.json", "{}")
	if out, err := r.run("sign"); err != nil {
		t.Fatalf("signing: %v\n%s", err, out)
	}
	r.write(t, "provenance.sigstore.json", provenance.String())
	return r
}

func (r *release) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (r *release) run(command string) (string, error) {
	cmd := exec.Command(filepath.Join(root, "deploy/release/release.sh"), command, r.dir)
	cmd.Env = r.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestSignedReleaseVerifies(t *testing.T) {
	r := newRelease(t)
	if out, err := r.run("verify"); err != nil || !strings.Contains(out, "14 files are signed by tag") {
		t.Errorf("got %q, %v, want 14 files that verify", out, err)
	}
	for _, name := range []string{"ropewalk_1.0.0_arm64.deb", "ropewalk-agent_1.0.0_amd64.deb", "ropewalk-image.tar"} {
		if _, err := os.Stat(filepath.Join(r.dir, name+".sbom.sigstore.json")); err != nil {
			t.Errorf("%s has no attested SBOM: %v", name, err)
		}
	}
}

func TestVerifyRefusesOtherReleases(t *testing.T) {
	remove := func(name string) func(*testing.T, *release) {
		return func(t *testing.T, r *release) {
			if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for want, corrupt := range map[string]func(t *testing.T, r *release){
		"missing or changed": func(t *testing.T, r *release) { r.write(t, "ropewalk-image.tar", "other") },
		"SHA256SUMS":         remove("SHA256SUMS"),
		"ropewalk-crds-1.0.0.tgz has no signature":      remove("ropewalk-crds-1.0.0.tgz.sigstore.json"),
		"SBOM of ropewalk-1.0.0-1.aarch64.rpm":          remove("ropewalk-1.0.0-1.aarch64.rpm.sbom.sigstore.json"),
		"provenance of":                                 remove("provenance.sigstore.json"),
		"signature of SHA256SUMS is not valid":          func(t *testing.T, r *release) { r.env = append(r.env, "IDENTITY=other") },
		"IDENTITY and ISSUER are not set":               func(t *testing.T, r *release) { r.env = append(r.env, "ISSUER=") },
		"signature of OCI-DIGESTS is not valid":         func(t *testing.T, r *release) { r.write(t, "OCI-DIGESTS", "other") },
		"ropewalk.openvex.json has no signature":        remove("ropewalk.openvex.json.sigstore.json"),
		"ropewalk-extra is not in SHA256SUMS":           func(t *testing.T, r *release) { r.write(t, "ropewalk-extra", "") },
		"the signature of ropewalk.yaml is not valid":   func(t *testing.T, r *release) { r.write(t, "ropewalk.yaml.sigstore.json", "") },
		"ropewalk-linux-amd64: FAILED open or read":     remove("ropewalk-linux-amd64"),
		"the SBOM of ropewalk-agent_1.0.0_amd64.deb is": func(t *testing.T, r *release) { r.write(t, "ropewalk-agent_1.0.0_amd64.deb.sbom.sigstore.json", "") },
	} {
		r := newRelease(t)
		corrupt(t, r)
		if out, err := r.run("verify"); err == nil || !strings.Contains(out, want) {
			t.Errorf("got %q, %v, want an error with %q", out, err, want)
		}
	}
}

func TestReleaseNotesNeedDatedSection(t *testing.T) {
	dir := t.TempDir()
	script, err := filepath.Abs(filepath.Join(root, "deploy/release/release.sh"))
	if err != nil {
		t.Fatal(err)
	}
	changes := "# Changelog\n\n## [1.1.0] - Unreleased\n\n- new\n\n## [1.0.0] - 2026-12-01\n\n- first\n\n## [0.9.0] - 2026-01-01\n\n- old\n"
	if err := os.WriteFile(filepath.Join(dir, "CHANGELOG.md"), []byte(changes), 0o644); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]string{"v1.0.0": "\n- first\n\n", "v1.1.0": "", "v2.0.0": ""} {
		cmd := exec.Command(script, "notes", version)
		cmd.Dir = dir
		if out, err := cmd.Output(); (err == nil) != (want != "") || string(out) != want {
			t.Errorf("%s: got %q, %v, want %q", version, out, err, want)
		}
	}
}

// TestWorkflowRunsAllTargetsOfGate compares the jobs of ci.yml with `make ci`.
func TestWorkflowRunsAllTargetsOfGate(t *testing.T) {
	var have []string
	for _, targets := range regexp.MustCompile(`\{name: [a-z]+, targets: ([a-z0-9 -]+)\}`).FindAllStringSubmatch(read(t, ".github/workflows/ci.yml"), -1) {
		have = append(have, strings.Fields(targets[1])...)
	}
	recipe := regexp.MustCompile(`(?m)^ci: deps-ci.*\n\t@test/ci.sh '(.*)' \\\n\t  '(.*)'$`).FindStringSubmatch(read(t, "Makefile"))
	if recipe == nil {
		t.Fatal("the Makefile has no recipe of ci as this test knows it")
	}
	// A job compiles what it tests, and test-package makes the release twice.
	covered := []string{"build-kube", "release", "test-reproducible"}
	for _, target := range strings.Fields(recipe[1] + " " + recipe[2]) {
		if !slices.Contains(have, target) && !slices.Contains(covered, target) {
			t.Errorf("no job of ci.yml runs %s", target)
		}
	}
}
