// SPDX-License-Identifier: Apache-2.0

package tun

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
)

const clonePath = "/dev/net/tun"

// openClone opens the clone device, from which TUN devices are created.
func openClone() (int, error) {
	fd, err := unix.Open(clonePath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return -1, fmt.Errorf("opening %s: %w (run `modprobe tun`; in a container, pass the device in, "+
			"or `mknod %[1]s c 10 200`)", clonePath, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return -1, fmt.Errorf("opening %s: %w (the device's mode or the container's device rules deny access)", clonePath, err)
	}
	return -1, fmt.Errorf("opening %s: %w", clonePath, err)
}

// attachQueue adds a queue to the interface called name. With exclusive it creates the interface instead, and an
// existing one is an error. It returns the descriptor and the interface's final name.
func attachQueue(name string, exclusive bool) (fd int, final string, err error) {
	flags := uint16(unix.IFF_TUN | unix.IFF_NO_PI | unix.IFF_VNET_HDR | unix.IFF_MULTI_QUEUE)
	if exclusive {
		flags |= unix.IFF_TUN_EXCL
	}
	request, err := unix.NewIfreq(name)
	if err != nil {
		return -1, "", fmt.Errorf("naming interface %s: %w", name, err)
	}
	request.SetUint16(flags)
	fd, err = openClone()
	if err != nil {
		return -1, "", err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		_ = unix.Close(fd)
		return -1, "", explainAttach(name, exclusive, err)
	}
	return fd, request.Name(), nil
}

func explainAttach(name string, exclusive bool, err error) error {
	switch {
	case exclusive && errors.Is(err, unix.EBUSY):
		return fmt.Errorf("interface %s already exists: %w", name, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("creating interface %s: %w (needs CAP_NET_ADMIN)", name, err)
	case errors.Is(err, unix.ENOTTY):
		return fmt.Errorf("creating interface %s: %w (%s is not the tun device, which is c 10 200)", name, err, clonePath)
	case exclusive:
		return fmt.Errorf("creating interface %s: %w", name, err)
	}
	return fmt.Errorf("adding a queue to interface %s: %w", name, err)
}

// setOffloads sets the size of the virtio-net header and enables the best set of offloads that the kernel accepts.
// Checksum offload is required: without it a sender's UDP_SEGMENT into the interface fails with EIO.
func setOffloads(fd int, c *Config) (Features, error) {
	if err := unix.IoctlSetPointerInt(fd, unix.TUNSETVNETHDRSZ, offload.VnetHdrLen); err != nil {
		return Features{}, fmt.Errorf("setting the virtio-net header size (TUNSETVNETHDRSZ): %w", err)
	}
	const tso = unix.TUN_F_CSUM | unix.TUN_F_TSO4 | unix.TUN_F_TSO6 | unix.TUN_F_TSO_ECN
	const uso = unix.TUN_F_USO4 | unix.TUN_F_USO6
	if !c.NoTSO && !c.NoUSO && unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tso|uso) == nil {
		return Features{TSO: true, USO: true}, nil
	}
	if !c.NoTSO && unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, tso) == nil { // before Linux 6.2
		return Features{TSO: true}, nil
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM); err != nil {
		return Features{}, fmt.Errorf("enabling checksum offload of the TUN device (TUNSETOFFLOAD), which ropewalk requires: %w", err)
	}
	return Features{}, nil
}
