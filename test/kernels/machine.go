// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
)

// tool is a program that the harness runs, and the Debian package that has it.
type tool struct{ name, pkg string }

var tools = []tool{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"busybox", "busybox-static"},
	{"xz", "xz-utils"},
	{"nft", "nftables"},
	{"dpkg-deb", "dpkg"},
	{"apt-get", "apt"},
	{"go", "golang-go"},
}

// missingTools returns the packages to install, given how to look up a program.
func missingTools(lookPath func(string) (string, error)) []string {
	var pkgs []string
	for _, t := range tools {
		if _, err := lookPath(t.name); err != nil {
			pkgs = append(pkgs, t.pkg)
		}
	}
	return pkgs
}

// errNoMarker says that the machine died before init finished: a panic, a hang until the deadline, or no boot at all.
var errNoMarker = errors.New("the machine ended before its tests did")

// boot runs one machine to its end and feeds its console to r and, line by line, to echo.
func boot(ctx context.Context, k *unpacked, initramfs string, r *results, echo func(string)) error {
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", qemuArgs(k.image, initramfs)...)
	console, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting QEMU: %w", err)
	}
	readErr := readLines(console, func(line string) {
		r.Line(line)
		echo(line)
	})
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", errNoMarker, ctx.Err())
	case err != nil:
		return fmt.Errorf("running QEMU: %w\n%s", err, stderr.String())
	case readErr != nil:
		return fmt.Errorf("reading the console: %w", readErr)
	case !r.done:
		return errNoMarker
	}
	return nil
}

// qemuArgs: emulation, because /dev/kvm may be there and still not run a guest.
func qemuArgs(image, initramfs string) []string {
	return []string{
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048",
		"-nodefaults", "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot",
		"-device", "virtio-rng-pci",
		"-kernel", image, "-initrd", initramfs,
		"-append", "console=ttyS0 panic=-1 loglevel=4 mitigations=off random.trust_cpu=on",
	}
}

// readLines calls line for each line without its end; lines may be of any length.
func readLines(r io.Reader, line func(string)) error {
	br := bufio.NewReader(r)
	for {
		s, err := br.ReadString('\n')
		if s != "" {
			line(strings.TrimRight(s, "\r\n"))
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
