// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// root is the repository.
const root = "../../.."

func TestMain(m *testing.M) {
	if os.Args[0] == initName {
		fmt.Fprintln(os.Stderr, beInit(os.Args[1], os.Args[2]))
		os.Exit(1)
	}
	os.Exit(runTests(m))
}

// imageDir has the images, for all tests.
var imageDir string

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "cluster-images")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	imageDir = dir
	return m.Run()
}

// artifacts are what the machines run.
type artifacts struct {
	bin    string // directory of programs
	images []string
}

// buildAll builds once.
var buildAll = sync.OnceValues(func() (a artifacts, err error) {
	if a.bin, err = buildPrograms(); err == nil {
		a.images, err = buildImages(imageDir, a.bin)
	}
	return a, err
})

// programs are the names by which the binary of test/kube/hyper is called.
var programs = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"}

// buildPrograms builds what the machines run, and returns its directory. The directory is kept: a second run links nothing.
func buildPrograms() (string, error) {
	bin, err := filepath.Abs(filepath.Join(root, "bin", "kube"))
	if err != nil {
		return "", err
	}
	const version = "k8s.io/component-base/version"
	ldflags := "-s -w -X " + version + ".gitVersion=v1.36.3 -X " + version + ".gitMajor=1 -X " + version + ".gitMinor=36"
	for _, b := range []struct{ dir, name, program string }{
		{"..", "hyper", "./hyper"},
		{"..", "pod", "./cluster/pod"},
		{"../deploy", "helm", "helm.sh/helm/v3/cmd/helm"},
		{"../policy", "kube-network-policies", "sigs.k8s.io/kube-network-policies/cmd"},
	} {
		build := exec.Command("go", "build", "-ldflags", ldflags, "-o", filepath.Join(bin, b.name), b.program)
		build.Dir = b.dir
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("building %s: %w\n%s", b.name, err, out)
		}
	}
	for _, name := range programs {
		if err := os.Symlink("hyper", filepath.Join(bin, name)); err != nil && !os.IsExist(err) {
			return "", err
		}
	}
	return bin, nil
}
