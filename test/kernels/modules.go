// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// requiredModules are the modules that the tests need. closure adds their dependencies.
var requiredModules = []string{
	"wireguard", "veth", "tun", "dummy", "vxlan", "virtio_pci", "virtio_net", "8021q", "bonding", "bridge", "ipvlan",
	"sch_ingress", "sch_netem", "sch_tbf", "cls_bpf", "act_mirred", "nf_tables", "nfnetlink", "xfrm_user",
	"nft_ct", "nft_chain_nat", "nft_masq", "nft_nat", "nft_fib_inet",
}

// optionalModules are part of other modules in some kernels, or missing.
var optionalModules = []string{"nft_counter", "nft_objref", "macvlan", "ipvlan"}

// module is one loadable module, decompressed.
type module struct {
	name string
	data []byte
}

// modules is an index of one lib/modules/RELEASE directory.
type modules struct {
	paths   map[string]string // canonical name to path
	builtin map[string]bool
	indexed bool // builtin is complete; some packages have no modules.builtin
}

// openModules indexes a directory. Debian's packages have no modules.dep (depmod runs on installation), so dependencies are read
// from the modules themselves.
func openModules(dir string) (*modules, error) {
	m := &modules{paths: map[string]string{}, builtin: map[string]bool{}}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := moduleName(p); ok && !d.IsDir() {
			m.paths[name] = p
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing modules: %w", err)
	}
	list, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing built-in modules: %w", err)
	}
	m.indexed = err == nil
	for s := bufio.NewScanner(bytes.NewReader(list)); s.Scan(); {
		if name, ok := moduleName(s.Text()); ok {
			m.builtin[name] = true
		}
	}
	return m, nil
}

// present returns the names that are modules of this kernel.
func (m *modules) present(names []string) (out []string) {
	for _, name := range names {
		if m.paths[canonical(name)] != "" {
			out = append(out, name)
		}
	}
	return out
}

// closure returns the wanted modules and their dependencies, without built-in ones. Each module comes after its dependencies.
func (m *modules) closure(wanted []string) ([]module, error) {
	read := func(name string) ([]byte, []string, error) {
		p, ok := m.paths[name]
		if !ok && (m.builtin[name] || !m.indexed) {
			return nil, nil, nil // built in, or missing: then the tests that need it fail
		}
		if !ok {
			return nil, nil, fmt.Errorf("kernel module %s: %w", name, fs.ErrNotExist)
		}
		data, err := readModule(p)
		if err != nil {
			return nil, nil, err
		}
		deps, err := dependencies(data)
		return data, deps, err
	}
	return dependencyOrder(wanted, read)
}

// dependencyOrder visits wanted and their dependencies, depth first. It leaves out built-in modules, for which read returns nil data.
func dependencyOrder(wanted []string, read func(name string) (data []byte, deps []string, err error)) ([]module, error) {
	var out []module
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		data, deps, err := read(name)
		if err != nil {
			return err
		}
		for _, d := range deps {
			if err := visit(d); err != nil {
				return fmt.Errorf("loading dependency %s of %s: %w", d, name, err)
			}
		}
		if data != nil {
			out = append(out, module{name: name, data: data})
		}
		return nil
	}
	for _, w := range wanted {
		if err := visit(canonical(w)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// readModule returns a module's ELF file. It runs xz(1) or zstd(1), because the standard library has no decoders.
func readModule(path string) ([]byte, error) {
	tool := "xz"
	switch filepath.Ext(path) {
	case ".ko":
		return os.ReadFile(path)
	case ".zst":
		tool = "zstd"
	}
	out, err := exec.Command(tool, "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("decompressing %s: %w", path, err)
	}
	return out, nil
}

// dependencies returns the modules that must be loaded first, from the .modinfo section of an ELF file.
func dependencies(ko []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(ko))
	if err != nil {
		return nil, fmt.Errorf("reading a kernel module: %w", err)
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("reading a kernel module: no .modinfo section")
	}
	info, err := s.Data()
	if err != nil {
		return nil, fmt.Errorf("reading a kernel module: %w", err)
	}
	return parseModinfo(info), nil
}

// parseModinfo returns the names in "depends=a,b" from NUL-terminated "tag=value" strings.
func parseModinfo(info []byte) []string {
	var deps []string
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		value, ok := bytes.CutPrefix(entry, []byte("depends="))
		if !ok {
			continue
		}
		for name := range strings.SplitSeq(string(value), ",") {
			if name != "" {
				deps = append(deps, canonical(name))
			}
		}
	}
	return deps
}

// moduleName returns the name of the module in a file such as kernel/net/cls_bpf.ko.xz.
func moduleName(path string) (string, bool) {
	base := strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".xz"), ".zst")
	name, ok := strings.CutSuffix(base, ".ko")
	return canonical(name), ok
}

// canonical returns the kernel's name of a module, which has underscores where the file name may have dashes.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }
