// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// installer puts peers below dir, each with its own bin, log and version stamp.
type installer struct {
	dir      string // absolute
	out      io.Writer
	lookPath func(string) (string, error)
	run      func(ctx context.Context, log io.Writer, env, argv []string) error
}

func newInstaller(dir string, out io.Writer) (installer, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return installer{}, fmt.Errorf("finding the peers' directory: %w", err)
	}
	return installer{dir: abs, out: out, lookPath: exec.LookPath, run: runCommand}, nil
}

// installAll returns the peers that are there in the end. A peer that cannot be installed is left
// out with a line that gives the reason. A machine without cargo still compares with the others.
func (in installer) installAll(ctx context.Context, list []peer) ([]peer, error) {
	var ready []peer
	for _, p := range list {
		err := in.install(ctx, p)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			fmt.Fprintf(in.out, "skipping %s: %v\n", p.name, err)
			continue
		}
		ready = append(ready, p)
	}
	return ready, nil
}

// install does nothing when the stamp names the pinned version and the binary is there.
func (in installer) install(ctx context.Context, p peer) error {
	if p.command != nil {
		_, err := in.lookPath(p.command[0])
		return err
	}
	root := p.root(in.dir)
	stamp := filepath.Join(root, "version")
	if have, err := os.ReadFile(stamp); err == nil && string(have) == p.version+"\n" && isExecutable(p.argv(in.dir)[0]) {
		return nil
	}
	env, argv := p.installCommand(in.dir)
	if _, err := in.lookPath(argv[0]); err != nil {
		return fmt.Errorf("it needs %s, which is not in the PATH", argv[0])
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("making its directory: %w", err)
	}
	fmt.Fprintf(in.out, "installing %s %s\n", p.name, p.version)
	if err := in.logged(ctx, filepath.Join(root, "install.log"), env, argv); err != nil {
		return err
	}
	if !isExecutable(p.argv(in.dir)[0]) {
		return fmt.Errorf("the installation made no %s", p.argv(in.dir)[0])
	}
	return os.WriteFile(stamp, []byte(p.version+"\n"), 0o644)
}

func (in installer) logged(ctx context.Context, path string, env, argv []string) error {
	log, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("opening the installation's log: %w", err)
	}
	err = in.run(ctx, log, env, argv)
	if err := errors.Join(err, log.Close()); err != nil {
		return fmt.Errorf("%s %s: %w (see %s)", argv[0], argv[1], err, path)
	}
	return nil
}

// installCommand returns the command that installs the peer below the absolute dir, and the
// environment that it needs. Both registries are asked for the exact version; the crates' own lock
// files fix the rest, as go.sum does for the packages.
func (p peer) installCommand(dir string) (env, argv []string) {
	root := p.root(dir)
	if p.source.crate != "" {
		return nil, []string{"cargo", "install", "--root", root, "--version", p.version, "--locked", p.source.crate}
	}
	env = []string{"GOBIN=" + filepath.Join(root, "bin"), "CGO_ENABLED=0"}
	return env, []string{"go", "install", "-trimpath", p.source.goPackage + "@" + p.version}
}

func isExecutable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0
}

// runCommand runs argv in a process group of its own, so that an end of ctx ends the compilers that it started too.
func runCommand(ctx context.Context, log io.Writer, env, argv []string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	return cmd.Run()
}
