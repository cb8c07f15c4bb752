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

// fakeCosign signs with a checksum. It takes the options that release.sh gives to cosign, and logs what it signs in a registry.
const fakeCosign = `#!/bin/bash
set -e
command=$1 file=${!#}
shift
while [ $# -gt 1 ]; do
  case $1 in
  --bundle) bundle=$2 ;;
  --predicate) predicate=$2 ;;
  --type) kind=$2 ;;
  --certificate-identity) identity=$2 ;;
  --certificate-oidc-issuer) issuer=$2 ;;
  --key) exit 1 ;;
  esac
  shift
done
case $command in
sign) echo "sign $file" >>"$LOG" && exit ;;
attest) echo "attest $file ${predicate##*/}" >>"$LOG" && exit ;;
esac
sum=$(sha256sum <"$file")
case $command in
sign-blob) echo "$sum" >"$bundle" ;;
attest-blob) echo "{\"sums\": [\"$kind $sum\"], \"dsseEnvelope\": {\"payload\": \"$(echo "{\"predicate\": $(<"$predicate")}" | base64 -w0)\"}}" >"$bundle" ;;
verify-blob) [ "$(<"$bundle")" = "$sum" ] && [ "$identity" = tag ] && [ "$issuer" = issuer ] ;;
verify-blob-attestation) [[ $(<"$bundle") = *"\"$kind $sum\""* ]] && [ "$identity" = tag ] && [ "$issuer" = issuer ] ;;
*) exit 1 ;;
esac
`

// fakeRegistry is helm and oras. Its answers have the digest in DIGEST.
const fakeRegistry = `#!/bin/bash
case $1 in
push) [ "${0##*/}" = oras ] || echo "Digest: $DIGEST" ;;
resolve) echo "$DIGEST" ;;
esac
`

// release is a directory with the files of a release, and the environment of the programs that sign and push them.
type release struct {
	dir, log string
	env      []string
}

// unsignedRelease returns a release before release.sh sees it.
func unsignedRelease(t *testing.T) *release {
	t.Helper()
	dir := t.TempDir()
	r := &release{dir: filepath.Join(dir, "dist"), log: filepath.Join(dir, "log"), env: append(os.Environ(), "IDENTITY=tag", "ISSUER=issuer", "TAG=1.0.0")}
	for name, text := range map[string]string{"cosign": fakeCosign, "oras": fakeRegistry, "helm": fakeRegistry} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		r.env = append(r.env, strings.ToUpper(name)+"="+filepath.Join(dir, name))
	}
	r.env = append(r.env, "LOG="+r.log, "KEY=an environment may have one")
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	names := []string{"ropewalk_1.0.0_arm64.deb", "ropewalk-1.0.0-1.aarch64.rpm", "ropewalk-agent_1.0.0_amd64.deb", "ropewalk-crds-1.0.0.tgz", "ropewalk.yaml"}
	for _, name := range names {
		r.write(t, name, "content of "+name)
	}
	for _, program := range []string{"ropewalk", "ropewalk-agent"} {
		for _, arch := range []string{"amd64", "arm64"} {
			name := program + "-linux-" + arch
			r.write(t, name, "content of "+name)
			r.write(t, name+".cdx.json", fmt.Sprintf(`{"of": %q}`, name))
			names = append(names, name, name+".cdx.json")
		}
		r.write(t, program+".openvex.json", "{}")
		r.writeImage(t, program+"-image.tar")
		names = append(names, program+"-image.tar")
	}
	r.write(t, "OCI-DIGESTS", "")
	var sums, provenance []string
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(r.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(text))
		sums, provenance = append(sums, sum+"  "+name+"\n"), append(provenance, fmt.Sprintf("%q", "slsaprovenance1 "+sum+"  -"))
	}
	r.write(t, "SHA256SUMS", strings.Join(sums, ""))
	r.write(t, "provenance.sigstore.json", `{"sums": [`+strings.Join(provenance, ", ")+"]}")
	return r
}

// newRelease returns a signed release.
func newRelease(t *testing.T) *release {
	t.Helper()
	r := unsignedRelease(t)
	if out, err := r.run("sign"); err != nil {
		t.Fatalf("signing: %v\n%s", err, out)
	}
	return r
}

// digest returns a digest, of which all digits are the same.
func digest(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

// writeImage writes an OCI archive with an index (digest a) of two images (b and c).
func (r *release) writeImage(t *testing.T, name string) {
	t.Helper()
	layout := t.TempDir()
	blobs := filepath.Join(layout, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	index := fmt.Sprintf(`{"manifests":[{"digest":%q}]}`, digest("a"))
	images := fmt.Sprintf(`{"manifests":[{"digest":%q,"platform":{"architecture":"amd64"}},{"digest":%q,"platform":{"architecture":"arm64"}}]}`, digest("b"), digest("c"))
	for path, text := range map[string]string{filepath.Join(layout, "index.json"): index, filepath.Join(blobs, strings.Repeat("a", 64)): images} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("tar", "-C", layout, "-cf", filepath.Join(r.dir, name), "blobs", "index.json").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func (r *release) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (r *release) run(command string, more ...string) (string, error) {
	cmd := exec.Command(filepath.Join(root, "deploy/release/release.sh"), append([]string{command, r.dir}, more...)...)
	cmd.Env = r.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestSignedReleaseVerifies(t *testing.T) {
	r := newRelease(t)
	if out, err := r.run("verify"); err != nil || !strings.Contains(out, "19 files are signed by tag") {
		t.Errorf("got %q, %v, want 19 files that verify", out, err)
	}
}

// TestVerifyMissesEachFile removes each file of a release, changes one of each kind, and adds others.
func TestVerifyMissesEachFile(t *testing.T) {
	r := newRelease(t)
	entries, err := os.ReadDir(r.dir)
	if err != nil || len(entries) < 50 {
		t.Fatalf("got %d files, %v", len(entries), err)
	}
	changed, variants := map[string]bool{}, regexp.MustCompile("-agent|amd64|arm64|aarch64")
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if out, err := r.run("verify"); err == nil {
			t.Errorf("without %s: got %q and no error", e.Name(), out)
		}
		if kind := variants.ReplaceAllString(e.Name(), ""); !changed[kind] {
			changed[kind] = true
			r.write(t, e.Name(), "other")
			if out, err := r.run("verify"); err == nil {
				t.Errorf("with another %s: got %q and no error", e.Name(), out)
			}
		}
		r.write(t, e.Name(), string(text))
	}
	for _, name := range []string{"ropewalk-extra", "ropewalk-extra.sigstore.json", ".hidden"} {
		r.write(t, name, "")
		if out, err := r.run("verify"); err == nil || !strings.Contains(out, "not of this release: "+name) {
			t.Errorf("with %s: got %q, %v", name, out, err)
		}
		if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := r.run("verify"); err != nil {
		t.Errorf("with all files as they were: %q, %v", out, err)
	}
}

func TestVerifyRefusesOtherReleases(t *testing.T) {
	image := "ropewalk-image.tar.ropewalk-linux-%s.cdx.json.sigstore.json"
	for want, corrupt := range map[string]func(t *testing.T, r *release){
		"signature of SHA256SUMS is not valid":  func(_ *testing.T, r *release) { r.env = append(r.env, "IDENTITY=other") },
		"IDENTITY and ISSUER are not set":       func(_ *testing.T, r *release) { r.env = append(r.env, "ISSUER=") },
		"signature of OCI-DIGESTS is not valid": func(t *testing.T, r *release) { r.write(t, "OCI-DIGESTS", "other") },
		"has no SHA256SUMS":                     func(t *testing.T, r *release) { r.write(t, "SHA256SUMS", "") },
		"files in .* are changed": func(t *testing.T, r *release) {
			r.write(t, "ropewalk.yaml", "other")
			r.write(t, "ropewalk.yaml.sigstore.json", fmt.Sprintf("%x  -\n", sha256.Sum256([]byte("other"))))
		},
		"SBOM ropewalk-linux-arm64.cdx.json of ropewalk-image.tar is not attested": func(t *testing.T, r *release) {
			amd64, err := os.ReadFile(filepath.Join(r.dir, fmt.Sprintf(image, "amd64")))
			if err != nil {
				t.Fatal(err)
			}
			r.write(t, fmt.Sprintf(image, "arm64"), string(amd64))
		},
	} {
		r := newRelease(t)
		corrupt(t, r)
		if out, err := r.run("verify"); err == nil || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("got %q, %v, want an error with %q", out, err, want)
		}
	}
}

// TestPushedImagesHaveSBOMOfTheirPrograms has one program in the image ropewalk, and two in ropewalk-agent.
func TestPushedImagesHaveSBOMOfTheirPrograms(t *testing.T) {
	r := unsignedRelease(t)
	r.env = append(r.env, "DIGEST="+digest("d"))
	if out, err := r.run("push", "registry"); err != nil {
		t.Fatalf("pushing: %v\n%s", err, out)
	}
	if out, err := r.run("sign-oci"); err != nil {
		t.Fatalf("signing: %v\n%s", err, out)
	}
	log, err := os.ReadFile(r.log)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.NewReplacer("A", digest("a"), "B", digest("b"), "C", digest("c"), "D", digest("d")).Replace(`sign registry/ropewalk@A
sign registry/ropewalk@B
attest registry/ropewalk@B ropewalk-linux-amd64.cdx.json
sign registry/ropewalk@C
attest registry/ropewalk@C ropewalk-linux-arm64.cdx.json
sign registry/ropewalk-agent@A
sign registry/ropewalk-agent@B
attest registry/ropewalk-agent@B ropewalk-linux-amd64.cdx.json
attest registry/ropewalk-agent@B ropewalk-agent-linux-amd64.cdx.json
sign registry/ropewalk-agent@C
attest registry/ropewalk-agent@C ropewalk-linux-arm64.cdx.json
attest registry/ropewalk-agent@C ropewalk-agent-linux-arm64.cdx.json
sign registry/charts/ropewalk-crds@D
sign registry/packages/ropewalk-agent@D
attest registry/packages/ropewalk-agent@D ropewalk-agent-linux-amd64.cdx.json
sign registry/packages/ropewalk@D
attest registry/packages/ropewalk@D ropewalk-linux-arm64.cdx.json
sign registry/packages/ropewalk@D
attest registry/packages/ropewalk@D ropewalk-linux-arm64.cdx.json
`)
	if string(log) != want {
		t.Errorf("got\n%s\nwant\n%s", log, want)
	}
}

// TestPushWithoutDigestFails has a registry that answers with something else, and files that are no images.
func TestPushWithoutDigestFails(t *testing.T) {
	for _, answer := range []string{"", "sha256:", digest("d") + "\n" + digest("d")} {
		r := unsignedRelease(t)
		r.env = append(r.env, "DIGEST="+answer)
		if out, err := r.run("push", "registry"); err == nil || !strings.Contains(out, "got no digest") {
			t.Errorf("digest %q: got %q, %v", answer, out, err)
		}
		if out, err := r.run("sign-oci"); err == nil {
			t.Errorf("digest %q: signing after a failed push: got %q and no error", answer, out)
		}
	}
	r := unsignedRelease(t)
	r.env = append(r.env, "DIGEST="+digest("d"))
	r.write(t, "ropewalk-image.tar", "no archive")
	if out, err := r.run("push", "registry"); err == nil {
		t.Errorf("an image that is none: got %q and no error", out)
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
