// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
)

const (
	// firstTag is the version with which images and charts are made. nextTag is the same image with another name: an upgrade.
	firstTag   = "0.1.0"
	nextTag    = "0.1.1"
	agentImage = "localhost/ropewalk-agent"
	podImage   = "localhost/cluster-pod:1"
)

// buildImages builds the agent's image as a release does, for this machine only, and that of the test's pods.
func buildImages(dir, bin string) ([]string, error) {
	agent := filepath.Join(dir, "ropewalk-agent-image.tar")
	build := exec.Command("make", "image-agent", "DIST_ARCHES="+runtime.GOARCH, "DIST="+dir, "STAGE="+filepath.Join(dir, "stage"), "VERSION="+firstTag)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the agent's image: %w\n%s", err, out)
	}
	pod := filepath.Join(dir, "pod.tar")
	storage := []string{"--storage-driver", "vfs", "--root", filepath.Join(dir, "storage"), "--runroot", filepath.Join(dir, "storage-run")}
	for _, args := range [][]string{
		{"from", "--name", "pod", "scratch"},
		{"copy", "pod", filepath.Join(bin, "pod"), filepath.Join(bin, "kube-network-policies"), "/"},
		{"config", "--entrypoint", `["/pod"]`, "pod"},
		{"commit", "pod", "oci-archive:" + pod + ":" + podImage},
	} {
		if out, err := exec.Command("buildah", append(storage, args...)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("building the pods' image: buildah %q: %w\n%s", args, err, out)
		}
	}
	return []string{agent, pod}, nil
}
