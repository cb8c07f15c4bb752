// SPDX-License-Identifier: Apache-2.0

// Package programs embeds and loads ropewalk's eBPF programs, which are written in C in bpf/:
//
//   - Steer chooses the TUN queue of an inner packet (TUNSETSTEERINGEBPF).
//   - Spread gives data messages the source port of their flow's lane (tc egress), and restores the ports on the
//     receiving side (tc ingress or XDP).
//   - Classify is the XDP program in front of an engine's receiver.
//   - Guard counts, and may drop, what leaves a node beside the tunnel (tc egress).
//
// A loaded program does nothing until it is attached; package hook attaches programs to devices. Every program is
// optional: where the kernel cannot load one, ropewalk works without it.
//
// Begin with LoadSteer, LoadSpread, LoadClassify and LoadGuard.
//
// Not for other programs: it may change without notice.
package programs

// The flags exclude system headers and compiler defaults, so that the build is reproducible. Instruction set v3 needs
// Linux 5.1.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -mcpu=v3 -std=c11 -ffreestanding -nostdinc -Wall -Wextra -Werror" -no-global-types steer ../../../bpf/steer.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -mcpu=v3 -std=c11 -ffreestanding -nostdinc -Wall -Wextra -Werror" -type lane spread ../../../bpf/spread.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -mcpu=v3 -std=c11 -ffreestanding -nostdinc -Wall -Wextra -Werror" classify ../../../bpf/classify.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -mcpu=v3 -std=c11 -ffreestanding -nostdinc -Wall -Wextra -Werror" guard ../../../bpf/guard.bpf.c
//go:generate go run gen.go Event EVENT ../../../bpf/include/spread_events.h ClassifyEvent CLASSIFY ../../../bpf/include/classify_events.h GuardClass GUARD ../../../bpf/include/guard_classes.h event_enums.go
