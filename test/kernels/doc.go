// SPDX-License-Identifier: Apache-2.0

// Package kernels runs test binaries on other Linux kernels. It fetches Debian's kernels from the mirror that the host
// already uses, builds an initramfs of a static init, the kernel modules that the tests want and the static test
// binaries, boots it under QEMU's software emulation, and reads the results of the tests from the console.
//
// An emulated machine beside load now and then stands still. One that stalls (its kernel says so and nothing gets on, or
// even init falls silent) is switched off and started again with what it had not finished, twice at most. A failed test
// is never run again, a test that hangs on a machine that lives fails by its timeout, and a kernel that broke (an oops,
// a BUG, a panic) fails the machine even if all tests passed: those may be ropewalk's doing.
//
// The matrix itself is behind the build tag `kernels` (make test-kernels); the parts are tested with everything else.
// It needs no root, no KVM and no network but the mirror. What it reads from the environment:
//
//	KERNELS            which kernels, by series, e.g. "5.10 6.12"; all when empty
//	KERNELS_CACHE      where unpacked kernels are kept; build/kernels in the repository when empty
//	KERNELS_PACKAGES   which packages' tests, e.g. "./test/interop ./pkg/tun"; see defaultPackages
//	KERNELS_RUN        which tests, a regular expression as of go test -run
//	KERNELS_TIMEOUT    how long one machine may take, restarts included, e.g. "10m"; see defaultTimeout
//	ROPEWALK_BIN       the static binary to test; built from cmd/ropewalk when empty
//	WIREGUARD_GO_BIN   its peer; built from the module in go.mod when empty
//
// ROPEWALK_INTEROP_CONTROL is handed on to the interop tests.
package kernels
