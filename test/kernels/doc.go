// SPDX-License-Identifier: Apache-2.0

// Package kernels runs test binaries on other Linux kernels. It fetches Debian's kernels from the
// mirror that the host already uses, and two kernels of Ubuntu, by their checksums, from Ubuntu's
// archive. It builds an initramfs with a static init, the required kernel modules and the static
// test binaries, and boots it under QEMU's software emulation (TCG). It parses the test results
// from the console.
//
// An emulated machine on a busy host sometimes stalls: its kernel reports a stall and no test makes progress, or even init's
// heartbeat stops. A stalled machine is powered off and restarted with the unfinished tests, at most twice. Steps that failed run
// once more on a second machine, and a second failure counts. A test that hangs on a live machine fails by its timeout. A kernel
// oops, BUG or panic fails the machine even if all tests passed, because ropewalk may have caused it. A register dump that no processor can
// have, or a breakpoint that was removed, is the emulator's fault: the machine is restarted.
//
// The machines also have features that a developer's kernel may lack: in-kernel WireGuard,
// nftables, and netem for test/interop and test/spread.
//
// The matrix has the build tag `kernels` (make test-kernels). The tests of its parts have no tag. The matrix needs no KVM and no
// network except the mirror. Without root it skips the tests that need NICs. The environment:
//
//	KERNELS            kernel series, e.g. "5.10 6.12"; all if empty
//	KERNELS_CACHE      cache directory of unpacked kernels; build/kernels in the repository if empty
//	KERNELS_PACKAGES   packages to test, e.g. "./test/interop ./pkg/netio/tun"; see defaultPackages
//	KERNELS_GATE       if not empty, only the tests of make ci: see fullSteps, fullTests and gateTests
//	KERNELS_RUN        tests to run: a regular expression as for go test -run
//	KERNELS_TIMEOUT    time limit of one machine including restarts, e.g. "10m"; see defaultTimeout
//	ROPEWALK_BIN       the static binary to test; built from cmd/ropewalk if empty
//	WIREGUARD_GO_BIN   its peer; built from the module in go.mod if empty
//
// ROPEWALK_INTEROP_CONTROL is passed to the interop tests.
package kernels
