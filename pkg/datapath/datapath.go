// SPDX-License-Identifier: Apache-2.0

// Package datapath holds the eBPF programs that are written in bpf/, compiled and embedded, and loads them. A program
// does nothing until it is attached to something; nothing here needs it to work, so that what cannot be loaded can be
// done without.
package datapath

// The flags leave no system header and no default of the machine in the build. Instruction set v3 is Linux 5.1's.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -mcpu=v3 -std=c11 -ffreestanding -nostdinc -Wall -Wextra -Werror" -no-global-types steer ../../bpf/steer.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -mcpu=v3 -std=c11 -ffreestanding -nostdinc -Wall -Wextra -Werror" spread ../../bpf/spread.bpf.c
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -tags linux -target bpfel -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -mcpu=v3 -std=c11 -ffreestanding -nostdinc -Wall -Wextra -Werror" classify ../../bpf/classify.bpf.c
//go:generate go run gen.go Event EVENT ../../bpf/include/spread_events.h ClassifyEvent CLASSIFY ../../bpf/include/classify_events.h events.go
