// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// buildah runs buildah without an OCI runtime.
func buildah(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command("buildah", args...)
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("buildah %q: %v", args, err)
	}
	return strings.TrimSpace(string(out))
}

// TestImageMatchesManifests builds the agent's image as a release does, from static programs only.
func TestImageMatchesManifests(t *testing.T) {
	if _, err := exec.LookPath("buildah"); os.Geteuid() != 0 || err != nil {
		t.Skip("needs root and buildah, of Debian's package of that name", err)
	}
	const version = "1.2.3"
	dist := t.TempDir()
	build := exec.Command("make", "image-agent", "DIST_ARCHES="+runtime.GOARCH, "DIST="+dist, "STAGE="+t.TempDir(), "VERSION="+version)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	image := buildah(t, "pull", "oci-archive:"+filepath.Join(dist, "ropewalk-agent-image.tar"))
	t.Cleanup(func() { buildah(t, "rmi", image) })
	var inspected struct {
		OCIv1 struct {
			Architecture string
			Config       struct{ Entrypoint []string }
		}
	}
	if err := json.Unmarshal([]byte(buildah(t, "inspect", "--type", "image", image)), &inspected); err != nil {
		t.Fatal(err)
	}
	entry := inspected.OCIv1.Config.Entrypoint
	if inspected.OCIv1.Architecture != runtime.GOARCH || len(entry) != 1 {
		t.Fatalf("got %+v", inspected)
	}
	box := buildah(t, "from", image)
	t.Cleanup(func() { buildah(t, "rm", box) })
	for _, base := range []string{"spread", "mesh", "cleanup-spread", "cleanup-mesh"} {
		if command := agentPod(t, kustomized(base)).Spec.Containers[0].Command; !slices.Equal(command, entry) {
			t.Errorf("%s starts %q, the image %q", base, command, entry)
		}
	}
	for program, want := range map[string]string{entry[0]: "ropewalk-agent version " + version, "/usr/bin/ropewalk": "ropewalk version " + version} {
		if got := buildah(t, "run", "--isolation", "chroot", box, "--", program, "--version"); got != want {
			t.Errorf("got %s says %q, want %q", program, got, want)
		}
	}
	root := buildah(t, "mount", box)
	for _, name := range []string{"copyright", "copyright-agent", "ropewalk.cdx.json", "ropewalk-agent.cdx.json"} {
		st, err := os.Stat(filepath.Join(root, "usr/share/doc/ropewalk", name))
		if err == nil && st.Size() == 0 {
			err = errors.New("it is empty")
		}
		if err != nil {
			t.Errorf("%s: got error %v, want none", name, err)
		}
	}
}
