// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// krewPlugin is krew's type Plugin (pkg/index/types.go), whose module cannot be had.
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Version          string         `json:"version"`
		Homepage         string         `json:"homepage"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description"`
		Platforms        []krewPlatform `json:"platforms"`
	} `json:"spec"`
}

type krewPlatform struct {
	URI      string               `json:"uri"`
	SHA256   string               `json:"sha256"`
	Bin      string               `json:"bin"`
	Selector metav1.LabelSelector `json:"selector"`
}

var semver = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[\w.-]+)?(\+[\w.-]+)?$`)

// readKrew reads a manifest and checks it by krew's rules (internal/index/validation/validate.go). It returns the platforms by architecture.
func readKrew(t *testing.T, file string) (krewPlugin, map[string]krewPlatform) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var p krewPlugin
	if err := yaml.UnmarshalStrict(text, &p); err != nil {
		t.Fatal(err)
	}
	short := p.Spec.ShortDescription
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name+".yaml" != filepath.Base(file) {
		t.Errorf("got %s %s %s", p.APIVersion, p.Kind, p.Metadata.Name)
	}
	// krew's guide to manifests asks for at most 50 characters, without the word kubectl.
	if short == "" || len(short) > 50 || strings.Contains(short, "\n") || strings.Contains(short, "kubectl") || !semver.MatchString(p.Spec.Version) {
		t.Errorf("got version %q and short description %q", p.Spec.Version, short)
	}
	platforms := map[string]krewPlatform{}
	for _, at := range p.Spec.Platforms {
		labels := at.Selector.MatchLabels
		platforms[labels["arch"]] = at
		uri := "/releases/download/" + p.Spec.Version + "/ropewalk-kubectl-linux-" + labels["arch"] + ".tar.gz"
		if len(labels) != 2 || labels["os"] != "linux" || at.Bin != "kubectl-"+p.Metadata.Name || !regexp.MustCompile("^[a-f0-9]{64}$").MatchString(at.SHA256) ||
			!strings.HasPrefix(at.URI, p.Spec.Homepage) || !strings.HasSuffix(at.URI, uri) {
			t.Errorf("got %+v", at)
		}
	}
	if len(platforms) != 2 || len(p.Spec.Platforms) != 2 {
		t.Errorf("got platforms %+v, want one for each architecture of a release", p.Spec.Platforms)
	}
	return p, platforms
}

func TestKrewManifestIsValid(t *testing.T) {
	p, _ := readKrew(t, "../../../deploy/krew/ropewalk.yaml")
	for _, verb := range []string{"status", "check", "flows", "bundle"} {
		if !strings.Contains(p.Spec.Description, verb) {
			t.Errorf("the description does not name %s", verb)
		}
	}
}

// TestReleasedKrewManifestMatchesArchives unpacks the archives as krew does.
func TestReleasedKrewManifestMatchesArchives(t *testing.T) {
	_, platforms := readKrew(t, artifact(t, "ropewalk.yaml"))
	for arch, at := range platforms {
		archive := artifact(t, path.Base(at.URI))
		text, err := os.ReadFile(archive)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(text); hex.EncodeToString(sum[:]) != at.SHA256 {
			t.Errorf("%s: the checksum is %x, the manifest has %s", archive, sum, at.SHA256)
		}
		dir := t.TempDir()
		if out, err := exec.Command("tar", "-xzf", archive, "-C", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		got, err := os.ReadFile(filepath.Join(dir, at.Bin))
		want, werr := os.ReadFile(artifact(t, "ropewalk-agent-linux-"+arch))
		info, serr := os.Stat(filepath.Join(dir, at.Bin))
		if err != nil || werr != nil || serr != nil || string(got) != string(want) || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %s is not the agent's program: %v, %v, %v", archive, at.Bin, err, werr, serr)
		}
		if _, err := os.Stat(filepath.Join(dir, "LICENSE")); err != nil { // krew's index requires it
			t.Error(err)
		}
	}
}
