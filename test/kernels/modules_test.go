// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModinfoListsDependencies(t *testing.T) {
	for _, tc := range []struct {
		name, info string
		want       []string
	}{
		{"none", "license=GPL\x00depends=\x00name=veth\x00", nil},
		{"some, with dashes", "depends=udp_tunnel,chacha-x86_64\x00name=x\x00", []string{"udp_tunnel", "chacha_x86_64"}},
		{"not terminated", "depends=a", []string{"a"}},
		{"padded with zeros", "\x00\x00depends=a\x00\x00\x00", []string{"a"}},
		{"another tag with the same ending", "softdepends=a\x00", nil},
		{"empty", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if d := cmp.Diff(tc.want, parseModinfo([]byte(tc.info))); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestModulesFollowTheirDependencies(t *testing.T) {
	deps := map[string][]string{
		"wireguard": {"udp_tunnel", "libchacha", "ip6_udp_tunnel"},
		"libchacha": {"chacha_x86_64"}, "chacha_x86_64": {"builtin"},
		"udp_tunnel": nil, "ip6_udp_tunnel": {"udp_tunnel"}, "tun": nil, "builtin": nil,
	}
	read := func(name string) ([]byte, []string, error) {
		d, ok := deps[name]
		if !ok {
			return nil, nil, fs.ErrNotExist
		}
		if name == "builtin" {
			return nil, nil, nil
		}
		return []byte(name), d, nil
	}
	got, err := dependencyOrder([]string{"tun", "wireguard", "tun"}, read)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range got {
		names = append(names, m.name)
	}
	want := []string{"tun", "udp_tunnel", "chacha_x86_64", "libchacha", "ip6_udp_tunnel", "wireguard"}
	if d := cmp.Diff(want, names); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := dependencyOrder([]string{"missing"}, read); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing module gives %v", err)
	}
}

func TestModuleDirectoryListsFilesAndBuiltins(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"kernel/net/cls-bpf.ko.xz": "", "kernel/net/veth.ko": "", "kernel/net/readme": "",
		"modules.builtin": "kernel/drivers/virtio/virtio_pci.ko\n",
	} {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m, err := openModules(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.paths) != 2 || m.paths["cls_bpf"] == "" || m.paths["veth"] == "" || !m.builtin["virtio_pci"] {
		t.Errorf("found %v, built in %v", m.paths, m.builtin)
	}
	if got, err := m.closure([]string{"virtio_pci"}); err != nil || len(got) != 0 {
		t.Errorf("a built-in module gives %v, %v", got, err)
	}
	if _, err := m.closure([]string{"sch_netem"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing module gives %v", err)
	}
	if _, err := m.closure([]string{"veth"}); err == nil {
		t.Error("no error for a module that is not an ELF file")
	}
}

func FuzzModinfo(f *testing.F) {
	f.Add([]byte("depends=udp_tunnel,chacha-x86_64\x00name=x\x00"))
	f.Add([]byte("depends=,,\x00"))
	f.Fuzz(func(t *testing.T, info []byte) {
		for _, d := range parseModinfo(info) {
			if d == "" || canonical(d) != d {
				t.Errorf("invalid dependency name %q", d)
			}
		}
	})
}
