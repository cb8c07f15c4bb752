// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// hugePage is the size of the requested huge pages in bytes.
const hugePage = 2 << 20

// mapUMEM maps memory for the frames. It uses huge pages if the administrator has reserved some (vm.nr_hugepages) and
// the UMEM fills at least one. Otherwise it maps ordinary pages, which the kernel may merge. The kernel allocates the
// pages when it pins them.
func mapUMEM(sys system, length int) ([]byte, error) {
	const anonymous = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS
	if length >= hugePage {
		rounded := (length + hugePage - 1) / hugePage * hugePage
		mem, err := sys.mmap(-1, 0, rounded, anonymous|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
		if err == nil {
			return mem, nil
		}
	}
	mem, err := sys.mmap(-1, 0, length, anonymous)
	if err != nil {
		return nil, fmt.Errorf("mapping %d bytes of frames: %w", length, err)
	}
	_ = sys.madvise(mem, unix.MADV_HUGEPAGE) // best effort
	return mem, nil
}

// registerUMEM registers the memory with the kernel. It records whether frames may carry TX metadata, which is so if
// the kernel knows the flag for it. Linux 6.8 to 6.10 support metadata without the flag, but cannot be distinguished
// from older ones.
func (s *Socket) registerUMEM(c *Config) error {
	reg := unix.XDPUmemReg{Addr: addressOf(s.umem), Len: uint64(len(s.frames)), Size: uint32(c.FrameSize)}
	if c.TxChecksum {
		reg.Flags, reg.Tx_metadata_len = unix.XDP_UMEM_TX_METADATA_LEN, metadataLen
		err := s.sys.setBytes(s.fd, unix.SOL_XDP, unix.XDP_UMEM_REG, bytesOf(&reg))
		if err == nil {
			s.tx.metadata = true
			return nil
		}
		if !errors.Is(err, unix.EINVAL) {
			return explainRegister(err)
		}
		reg.Flags, reg.Tx_metadata_len = 0, 0
	}
	if err := s.sys.setBytes(s.fd, unix.SOL_XDP, unix.XDP_UMEM_REG, bytesOf(&reg)); err != nil {
		return explainRegister(err)
	}
	return nil
}
