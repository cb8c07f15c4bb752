// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

// payload is the content that all machines share: the programs and test binaries. It is built once.
type payload struct {
	files map[string]string // host paths by path in the machine
	tests []string          // names of the test binaries in /tests
	env   []string          // environment of all steps
}

// buildPayload builds static binaries of init, the daemons and the packages' tests in dir. It skips packages without tests.
func buildPayload(ctx context.Context, root, dir string, packages []string) (*payload, error) {
	p := &payload{
		files: map[string]string{},
		env: []string{
			"PATH=/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp",
			"ROPEWALK_BIN=/usr/bin/ropewalk", "WIREGUARD_GO_BIN=/usr/bin/wireguard-go",
			// Fail without in-kernel WireGuard, and run the long tests and the tests that need
			// NICs or take CPUs offline.
			"ROPEWALK_INTEROP_STRICT=1", "ROPEWALK_INTEROP_LONG=1", "ROPEWALK_INTEROP_NICS=1",
			"ROPEWALK_OFFLINE_CPUS=1",
			"ROPEWALK_INTEROP_CONTROL=" + os.Getenv("ROPEWALK_INTEROP_CONTROL"),
		},
	}
	for _, b := range []struct{ in, pkg, env string }{
		{"/init", "./test/kernels/init", ""},
		{"/usr/bin/ropewalk", "./cmd/ropewalk", "ROPEWALK_BIN"},
		{"/usr/bin/wireguard-go", "golang.zx2c4.com/wireguard", "WIREGUARD_GO_BIN"},
	} {
		if given := os.Getenv(b.env); b.env != "" && given != "" {
			p.files[b.in] = given
			continue
		}
		out := filepath.Join(dir, filepath.Base(b.in))
		if err := goTool(ctx, root, "build", "-trimpath", "-ldflags=-s -w", "-o", out, b.pkg); err != nil {
			return nil, err
		}
		p.files[b.in] = out
	}
	crds, err := filepath.Glob(filepath.Join(root, "deploy/crd/*.yaml")) // tests of pkg/cluster/agent read them
	if err != nil {
		return nil, err
	}
	for _, crd := range crds {
		p.files["/deploy/crd/"+filepath.Base(crd)] = crd
	}
	for _, pkg := range packages {
		name := path.Base(pkg)
		out := filepath.Join(dir, name+".test")
		// In the package's directory, because it may belong to another module.
		if err := goTool(ctx, filepath.Join(root, pkg), "test", "-c", "-trimpath", "-ldflags=-s -w", "-o", out, "."); err != nil {
			return nil, err
		}
		if _, err := os.Stat(out); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		p.files["/tests/"+name] = out
		p.tests = append(p.tests, name)
	}
	return p, nil
}

// goTool runs the go command for the machines' platform: linux/amd64 without cgo.
func goTool(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, out)
	}
	return nil
}

// writeInitramfs writes a machine's root file system. It is not compressed, because decompression is slow under emulation.
func (p *payload) writeInitramfs(out string, k *unpacked, steps []plan.Step) (err error) {
	mods, err := openModules(k.modules)
	if err != nil {
		return err
	}
	load, err := mods.closure(slices.Concat(requiredModules, mods.present(optionalModules)))
	if err != nil {
		return fmt.Errorf("kernel %s: %w", k.release, err)
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	c := newCPIOWriter(f)
	todo := plan.Plan{Env: p.env, Steps: steps}
	for _, m := range load {
		name := "/lib/modules/" + m.name + ".ko"
		c.File(name, 0o644, m.data)
		todo.Modules = append(todo.Modules, name)
	}
	text, err := json.Marshal(todo)
	if err != nil {
		return err
	}
	c.File(plan.Path, 0o644, text)
	if err := addSystem(c); err != nil {
		return err
	}
	for in, host := range p.files {
		c.CopyFile(in, host, 0o755)
	}
	return c.Close()
}

// addSystem adds a minimal user space: mount points, a console, a shell and common tools.
func addSystem(c *cpioWriter) error {
	for _, d := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/etc", "/var"} {
		c.Dir(d)
	}
	c.Symlink("/var/run", "/run")
	// The kernel opens init's standard streams before init can mount devtmpfs.
	c.CharDevice("/dev/console", 5, 1)
	c.CharDevice("/dev/null", 1, 3)
	c.File("/etc/passwd", 0o644, []byte("root:x:0:0:root:/tmp:/bin/sh\n"))
	c.File("/etc/hosts", 0o644, []byte("127.0.0.1 localhost\n::1 localhost\n"))
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	c.CopyFile("/bin/busybox", busybox, 0o755)
	for _, applet := range []string{"sh", "cat", "ls", "ps", "true", "false", "sleep", "dmesg", "mount", "readlink"} {
		c.Symlink("/bin/"+applet, "busybox")
	}
	for _, name := range []string{"nft", "ip", "wg"} {
		if err := addProgram(c, name); err != nil {
			return err
		}
	}
	return nil
}
