// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"runtime"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/netio/kernel"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
)

func (s source) kernel() Kernel {
	release, _ := kernel.Uname()
	return Kernel{
		Release:    release,
		StallFixed: hostnet.WireGuardStall(),
		BTF:        result(s.exists("sys/kernel/btf/vmlinux")),
		UDP:        result(probeUDP()),
		TUN:        result(probeTUN()),
		TUNDevice:  probeTUNDevice(),
		Steer:      probeSteer(),
		TCX:        probeTCX(),
		XDPSocket:  probeXDPSocket(),
	}
}

func (s source) exists(path string) (bool, error) {
	_, err := fs.Stat(s.root, path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// probeUDP opens UDP sockets as a tunnel does, on an ephemeral port.
func probeUDP() (underlay.Features, error) {
	p, err := udp.Open(udp.Config{})
	if err != nil {
		return underlay.Features{}, err
	}
	return p.Features(), p.Close()
}

// probeTUN opens a TUN device as a tunnel does, in a private network namespace that ends with its thread.
func probeTUN() (f tun.Features, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("creating a network namespace for the TUN probe (needs CAP_SYS_ADMIN): %w", err)
			return
		}
		var d tun.Device
		if d, err = tun.Open(tun.Config{Name: "probe%d"}); err == nil {
			f, err = d.Features(), d.Close()
		}
	}()
	<-done
	return f, err
}

// probeTUNDevice opens the device node. Its file mode does not show a container's device rules.
func probeTUNDevice() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.IoctlGetInt(fd, unix.TUNGETFEATURES); err != nil {
		return fmt.Errorf("reading its features: %w", err)
	}
	return nil
}

func probeSteer() error {
	s, err := programs.LoadSteer()
	if err != nil {
		return err
	}
	return s.Close()
}

// probeTCX attaches a pass-all program to a device that does not exist. Kernels with tcx fail to find the device, others
// refuse the link type.
func probeTCX() error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.SchedCLS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		License:      "Apache-2.0",
	})
	if errors.Is(err, unix.EPERM) { // the library's message suggests RLIMIT_MEMLOCK first
		return fmt.Errorf("loading an eBPF program to probe tcx (needs CAP_BPF and CAP_NET_ADMIN): %w", unix.EPERM)
	}
	if err != nil {
		return err
	}
	defer program.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: math.MaxInt32, Program: program, Attach: ebpf.AttachTCXIngress})
	switch {
	case err == nil:
		return l.Close()
	case errors.Is(err, unix.ENODEV):
		return nil
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w (%w)", errors.ErrUnsupported, err)
	}
	return err
}

func probeXDPSocket() error {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%w (%w)", errors.ErrUnsupported, err)
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
