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

// wantedModules is what the tests need beyond what is built in. Those that they depend on are found.
var wantedModules = []string{
	"wireguard", "veth", "tun", "dummy", "vxlan", "virtio_pci", "virtio_net", "8021q", "bonding", "bridge",
	"sch_ingress", "sch_netem", "sch_tbf", "cls_bpf", "act_mirred", "nf_tables", "nfnetlink", "xfrm_user",
	"nft_ct", "nft_chain_nat", "nft_masq",
}

// optionalModules are parts of others in some kernels.
var optionalModules = []string{"nft_counter"}

// module is one loadable module, decompressed.
type module struct {
	name string
	data []byte
}

// modules reads the modules below one lib/modules/RELEASE directory.
type modules struct {
	paths   map[string]string // canonical name to path
	builtin map[string]bool
	indexed bool // builtin is known: not all packages list it
}

// openModules indexes a directory. Debian's packages carry no modules.dep (depmod runs on installation), so what a module
// depends on is read from the module itself.
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

// present returns those of names that are modules of this kernel.
func (m *modules) present(names []string) (out []string) {
	for _, name := range names {
		if m.paths[canonical(name)] != "" {
			out = append(out, name)
		}
	}
	return out
}

// closure returns the wanted modules that are not built in, each after those that it depends on.
func (m *modules) closure(wanted []string) ([]module, error) {
	read := func(name string) ([]byte, []string, error) {
		p, ok := m.paths[name]
		if !ok && (m.builtin[name] || !m.indexed) {
			return nil, nil, nil // built in, or the tests that need it will tell
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
	return inOrder(wanted, read)
}

// inOrder visits wanted and what it depends on, depth first. A module whose data is nil is built in and left out.
func inOrder(wanted []string, read func(name string) (data []byte, deps []string, err error)) ([]module, error) {
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
				return fmt.Errorf("%s needs it: %w", name, err)
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

// readModule returns a module's ELF file; xz as a tool because the standard library has no decoder.
func readModule(path string) ([]byte, error) {
	if strings.HasSuffix(path, ".ko") {
		return os.ReadFile(path)
	}
	out, err := exec.Command("xz", "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("decompressing %s: %w", path, err)
	}
	return out, nil
}

// dependencies reads the names of the modules that must be loaded first from an ELF file's .modinfo section.
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

// parseModinfo finds "depends=a,b" among NUL-terminated "tag=value" strings.
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
	base := strings.TrimSuffix(filepath.Base(path), ".xz")
	name, ok := strings.CutSuffix(base, ".ko")
	return canonical(name), ok
}

// canonical is the name as the kernel has it: file names may have dashes in it.
func canonical(name string) string { return strings.ReplaceAll(name, "-", "_") }
