// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// tool is a program that the harness runs, and the Debian package that has it.
type tool struct{ name, pkg string }

var tools = []tool{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"busybox", "busybox-static"},
	{"xz", "xz-utils"},
	{"nft", "nftables"},
	{"ip", "iproute2"},
	{"wg", "wireguard-tools"},
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

// processors is how many each machine has: with one, tests would meet no concurrency.
const processors = 2

// errNoMarker says that the machine died before init finished: a panic, a hang until the deadline, or no boot at all.
var errNoMarker = errors.New("the machine ended before its tests did")

// boot runs one machine, with cards or without (nil), to its end, or until it stalls, and feeds its console to r and, line by line, to echo.
func boot(ctx context.Context, k *unpacked, c *cards, initramfs string, r *results, echo func(string)) error {
	ctx, switchOff := context.WithCancelCause(ctx)
	defer switchOff(nil)
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", append(qemuArgs(k.image, initramfs), c.args()...)...)
	console, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := c.start(cmd); err != nil {
		return fmt.Errorf("starting QEMU: %w", err)
	}
	w := newWatch(processors, time.Now())
	go guard(ctx, w, switchOff)
	readErr := readLines(console, func(line string) {
		w.Line(time.Now(), line)
		r.Line(line)
		echo(line)
	})
	err = cmd.Wait()
	switch {
	case errors.Is(context.Cause(ctx), errStalled):
		if r.done { // all it could not do is power off
			return nil
		}
		return context.Cause(ctx)
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

// guard switches a machine off when it stalls.
func guard(ctx context.Context, w *watch, switchOff context.CancelCauseFunc) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if why := w.Stalled(now); why != "" {
				switchOff(fmt.Errorf("%w: %s", errStalled, why))
				return
			}
		}
	}
}

// qemuArgs: emulation, because /dev/kvm may be there and still not run a guest.
func qemuArgs(image, initramfs string) []string {
	return []string{
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", strconv.Itoa(processors), "-m", "2048",
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
