// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// buildah runs buildah(1) and returns its output.
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

func TestImageContainsProgramAndLabels(t *testing.T) {
	needRoot(t)
	needTool(t, "buildah")
	version := version(t)
	image := "ropewalk-test:" + strconv.Itoa(os.Getpid())
	archive := filepath.Join(t.TempDir(), "image.tar")
	build := exec.Command("make", "image", "ARCH="+runtime.GOARCH, "IMAGE="+image, "IMAGE_ARCHIVE="+archive, "DIST="+t.TempDir(), "STAGE="+t.TempDir(), "VERSION="+version)
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() { buildah(t, "rmi", image) })
	var inspected struct {
		OCIv1 struct {
			Architecture string
			Config       struct {
				Entrypoint []string
				Labels     map[string]string
			}
		}
	}
	if err := json.Unmarshal([]byte(buildah(t, "inspect", "--type", "image", image)), &inspected); err != nil {
		t.Fatal(err)
	}
	config := inspected.OCIv1.Config
	if len(config.Entrypoint) != 1 || config.Labels["org.opencontainers.image.licenses"] != "Apache-2.0" ||
		config.Labels["org.opencontainers.image.version"] != version || inspected.OCIv1.Architecture != runtime.GOARCH {
		t.Errorf("got %+v", inspected)
	}
	container := buildah(t, "from", "oci-archive:"+archive)
	t.Cleanup(func() { buildah(t, "rm", container) })
	run := func(args ...string) string {
		t.Helper()
		return buildah(t, append([]string{"run", "--isolation", "chroot"}, args...)...) // needs no OCI runtime
	}
	if got := run(container, "--", config.Entrypoint[0], "--version"); got != "ropewalk version "+version {
		t.Errorf("version %q, want %q", got, version)
	}
	if key := run("--user", "65532:65532", container, "--", config.Entrypoint[0], "genkey"); len(key) != 44 {
		t.Errorf("genkey as an unprivileged user printed %d bytes, want 44", len(key))
	}
}
