// SPDX-License-Identifier: Apache-2.0

package package_test

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// descriptor refers to a blob of an OCI image (https://github.com/opencontainers/image-spec/blob/main/descriptor.md).
type descriptor struct {
	MediaType, Digest string
	Size              int
	Platform          struct{ Architecture, OS string }
	Annotations       map[string]string
}

// imageIndex is an OCI image index.
type imageIndex struct{ Manifests []descriptor }

// imageConfig is an OCI image configuration.
type imageConfig struct {
	Architecture, OS, Created string
	Config                    struct {
		Entrypoint []string
		Labels     map[string]string
	}
}

// layout returns the files of an OCI archive, by path.
func layout(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	found := map[string][]byte{}
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if found[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// blob decodes a JSON blob of an OCI archive and checks its digest.
func blob(t *testing.T, from map[string][]byte, d descriptor, to any) {
	t.Helper()
	b := from["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if sum := sha256.Sum256(b); d.Digest != "sha256:"+hex.EncodeToString(sum[:]) || len(b) != d.Size {
		t.Fatalf("%+v: the archive has %d bytes with the digest %x", d, len(b), sum)
	}
	if err := json.Unmarshal(b, to); err != nil {
		t.Fatal(err)
	}
}

// TestImageArchivesHaveBothArchitectures follows each archive from index.json to the configurations.
func TestImageArchivesHaveBothArchitectures(t *testing.T) {
	for _, name := range []string{"ropewalk", "ropewalk-agent"} {
		t.Run(name, func(t *testing.T) {
			archive := layout(t, artifact(t, name+"-image.tar"))
			var top, index imageIndex
			if err := json.Unmarshal(archive["index.json"], &top); err != nil || len(top.Manifests) != 1 {
				t.Fatalf("%v, %+v, want one image index", err, top)
			}
			if ref := top.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; ref != "localhost/"+name+":"+tag(t) {
				t.Errorf("reference %q, want the tag %s", ref, tag(t))
			}
			blob(t, archive, top.Manifests[0], &index)
			var arches []string
			for _, d := range index.Manifests {
				arches = append(arches, d.Platform.Architecture)
				checkImage(t, archive, d, name)
			}
			if !slices.Equal(arches, []string{"amd64", "arm64"}) {
				t.Errorf("architectures %q", arches)
			}
		})
	}
}

// checkImage checks the manifest, the configuration and the labels of one architecture.
func checkImage(t *testing.T, archive map[string][]byte, d descriptor, name string) {
	t.Helper()
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	blob(t, archive, d, &manifest)
	var image imageConfig
	blob(t, archive, manifest.Config, &image)
	if image.Architecture != d.Platform.Architecture || image.OS != "linux" || len(manifest.Layers) != 1 {
		t.Errorf("platform %+v: %+v", d.Platform, image)
	}
	if !slices.Equal(image.Config.Entrypoint, []string{"/usr/bin/" + name}) {
		t.Errorf("entry point %q", image.Config.Entrypoint)
	}
	for label, want := range map[string]string{"title": name, "version": version(t), "licenses": "Apache-2.0"} {
		if got := image.Config.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s: %q, want %q", label, got, want)
		}
	}
}

// tag returns the images' tag: it is the charts' appVersion, so that charts and images of a release match without settings.
func tag(t *testing.T) string {
	t.Helper()
	chart := output(t, "tar", "-xzOf", artifact(t, "ropewalk-mesh-*.tgz"), "ropewalk-mesh/Chart.yaml")
	_, rest, ok := strings.Cut(chart, "\nappVersion: \"")
	value, _, closed := strings.Cut(rest, "\"\n")
	if !ok || !closed {
		t.Fatalf("no appVersion in %s", chart)
	}
	return value
}

func TestImageRunsAsUnprivilegedUser(t *testing.T) {
	needRoot(t)
	needTool(t, "buildah")
	dir := t.TempDir()
	buildah := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("buildah", append([]string{"--storage-driver", "vfs", "--root", dir + "/root", "--runroot", dir + "/run"}, args...)...)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("buildah %q: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	container := buildah("from", "oci-archive:"+artifact(t, "ropewalk-image.tar"))
	run := []string{"run", "--isolation", "chroot"} // needs no OCI runtime
	if got, want := buildah(append(run, container, "--", "/usr/bin/ropewalk", "--version")...), "ropewalk version "+version(t); got != want {
		t.Errorf("version %q, want %q", got, want)
	}
	if key := buildah(append(run, "--user", "65532:65532", container, "--", "/usr/bin/ropewalk", "genkey")...); len(key) != 44 {
		t.Errorf("genkey as an unprivileged user printed %d bytes, want 44", len(key))
	}
}
