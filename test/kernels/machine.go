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

// tool is a program that the harness runs, and its Debian package.
type tool struct{ name, pkg string }

var tools = []tool{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"busybox", "busybox-static"},
	{"xz", "xz-utils"},
	{"zstd", "zstd"},
	{"nft", "nftables"},
	{"ip", "iproute2"},
	{"wg", "wireguard-tools"},
	{"dpkg-deb", "dpkg"},
	{"apt-get", "apt"},
	{"go", "golang-go"},
}

// missingTools returns the Debian packages of the tools that lookPath does not find.
func missingTools(lookPath func(string) (string, error)) []string {
	var pkgs []string
	for _, t := range tools {
		if _, err := lookPath(t.name); err != nil {
			pkgs = append(pkgs, t.pkg)
		}
	}
	return pkgs
}

// processors is the number of processors of each machine. One processor would not test concurrency.
const processors = 2

// errNoMarker reports that the machine ended before init finished: a panic, a hang until the deadline, or a failed boot.
var errNoMarker = errors.New("the machine ended before its tests did")

// boot runs one machine until it powers off or stalls. It passes each line of the console to r and echo. Without NICs c is nil.
func boot(ctx context.Context, k *unpacked, c *nics, initramfs string, r *results, echo func(string)) error {
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
		if r.done { // the tests finished; only powering off stalled
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

// guard powers a machine off when it stalls.
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

// cpuModel is all that QEMU can emulate but AVX. An AVX instruction is emulated by a slow function:
// ciphers take several times as long with it. Whether ropewalk uses AVX depends on the processor
// alone, and the tests on the host cover it.
const cpuModel = "max,-avx,-avx2"

// qemuArgs returns QEMU's arguments. They select emulation, because KVM may fail to run a guest even if /dev/kvm exists.
func qemuArgs(image, initramfs string) []string {
	return []string{
		"-accel", "tcg,thread=multi", "-cpu", cpuModel, "-smp", strconv.Itoa(processors), "-m", "2048",
		"-nodefaults", "-display", "none", "-serial", "stdio", "-monitor", "none", "-no-reboot",
		"-device", "virtio-rng-pci",
		"-kernel", image, "-initrd", initramfs,
		"-append", "console=ttyS0 panic=-1 loglevel=4 mitigations=off random.trust_cpu=on no_timer_check",
	}
}

// readLines calls line for each line without its line break. Lines may have any length.
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
