// SPDX-License-Identifier: Apache-2.0

// Command init is process 1 of a test machine. It mounts the kernel's file systems, loads modules, runs the plan's steps on the
// console and powers off the machine.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/kernels/plan"
)

func main() {
	code, err := run()
	if err != nil {
		fmt.Println("init:", err)
		code = 1
	}
	// The line break separates the marker from a step's unfinished line.
	fmt.Printf("\n%s %d\n", plan.Marker, code)
	powerOff()
}

func run() (int, error) {
	if err := mountAll(); err != nil {
		return 0, err
	}
	p, err := readPlan()
	if err != nil {
		return 0, err
	}
	for _, m := range p.Modules {
		if err := loadModule(m); err != nil {
			return 0, err
		}
	}
	if err := prepareHost(); err != nil {
		return 0, err
	}
	go writeHeartbeats()
	code := 0
	for _, s := range p.Steps {
		fmt.Printf("\n%s %s\n", plan.StepMarker, s.Name)
		exit := step(s.Argv, p.Env)
		fmt.Printf("\n%s %s %d\n", plan.StepEndMarker, s.Name, exit)
		code = max(code, exit)
	}
	return code, nil
}

// writeHeartbeats writes a heartbeat for the harness. Each line is one write, so that it cannot split a line of a test.
func writeHeartbeats() {
	began := time.Now()
	for now := range time.Tick(10 * time.Second) {
		fmt.Printf("%s %s\n", plan.AliveMarker, now.Sub(began).Round(time.Second))
	}
}

func readPlan() (p plan.Plan, err error) {
	b, err := os.ReadFile(plan.Path)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, fmt.Errorf("decoding %s: %w", plan.Path, err)
	}
	return p, nil
}

// mountAll mounts the file systems that tests and daemons expect. A kernel may lack the BPF file system and tracefs.
func mountAll() error {
	for _, m := range []struct {
		fs, dir  string
		optional bool
	}{
		{"proc", "/proc", false},
		{"sysfs", "/sys", false},
		{"devtmpfs", "/dev", false},
		{"tmpfs", "/run", false},
		{"tmpfs", "/tmp", false},
		{"bpf", "/sys/fs/bpf", true},
		{"tracefs", "/sys/kernel/tracing", true},
	} {
		if err := unix.Mount(m.fs, m.dir, m.fs, 0, ""); err != nil && !m.optional {
			return fmt.Errorf("mounting %s: %w", m.dir, err)
		}
	}
	return os.MkdirAll("/run/netns", 0o755)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("loading %s: %w", path, err)
	}
	return nil
}

func prepareHost() error {
	// Before Linux 5.11, BPF memory counts against this limit.
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited); err != nil {
		return fmt.Errorf("lifting the memlock limit: %w", err)
	}
	if err := unix.Sethostname([]byte("vm")); err != nil {
		return fmt.Errorf("naming the host: %w", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("looking up lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bringing up lo: %w", err)
	}
	return enableStaticKeys(lo)
}

// enableStaticKeys enables the kernel's static keys for tc hooks and RPS and keeps them enabled. Otherwise each test would toggle them
// and thereby patch kernel code while the other processor sends. Under QEMU's emulation that processor may hit the breakpoint of
// a finished patch (smp_text_poke_batch_finish), which is an oops.
func enableStaticKeys(lo netlink.Link) error {
	clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(clsact); err != nil {
		return fmt.Errorf("adding a clsact qdisc to lo: %w", err)
	}
	if err := os.WriteFile("/sys/class/net/lo/queues/rx-0/rps_cpus", []byte("3"), 0); err != nil {
		return fmt.Errorf("turning RPS on: %w", err)
	}
	return nil
}

// step runs one command and returns its exit code. The code is at least 1 if the command could not run or was killed.
func step(argv, env []string) int {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	cmd.Dir = "/tmp"
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		fmt.Printf("\ninit: %s: %s\n", argv[0], exit)
		return max(exit.ExitCode(), 1)
	default:
		fmt.Println("\ninit:", err)
		return 1
	}
}

// powerOff powers off the machine. Without ACPI it reboots, which also ends QEMU because of -no-reboot.
func powerOff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	select {}
}
