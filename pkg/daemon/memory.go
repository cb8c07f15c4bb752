// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// sealed is what no one can do to a sealed memory file any more.
const sealed = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// seal returns a file in memory that holds b and can be read only. It has no name, and is gone with its last descriptor.
func seal(b []byte) (fd int, err error) {
	fd, err = createMemory()
	if err != nil {
		return -1, fmt.Errorf("making a file in memory: %w", err)
	}
	for len(b) > 0 && err == nil {
		var n int
		n, err = unix.Write(fd, b)
		b = b[max(n, 0):]
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("filling a file in memory: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// createMemory returns an empty file that nothing can be executed from, which is the only kind that some hosts allow (sysctl
// vm.memfd_noexec, Linux 6.3; EINVAL before).
func createMemory() (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate("ropewalk", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("ropewalk", flags)
	}
	return fd, err
}

// unseal returns what seal was given, and closes fd.
func unseal(fd int) ([]byte, error) {
	f := os.NewFile(uintptr(fd), "state")
	defer f.Close()
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&sealed != sealed {
		return nil, fmt.Errorf("reading the state: not a sealed file: %w", errHandoff)
	}
	info, err := f.Stat()
	if err != nil || info.Size() > maxHandoff {
		return nil, errors.Join(errHandoff, err)
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, info.Size()), b); err != nil {
		return nil, fmt.Errorf("reading the state: %w", err)
	}
	return b, nil
}
