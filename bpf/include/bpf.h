/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_BPF_H
#define ROPEWALK_BPF_H

/*
 * What the programs need of the kernel's eBPF interface (include/uapi/linux/bpf.h), and no more: with no system header
 * in the build, every machine with the pinned clang makes the same bytes.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

/* Values in network order have types of their own; host16() and its like read them. */
typedef struct {
	u16 raw;
} be16;
typedef struct {
	u32 raw;
} be32;
typedef struct {
	u64 raw;
} be64;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "network order is taken to be the other one");

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

INLINE u16 host16(be16 v)
{
	return __builtin_bswap16(v.raw);
}

INLINE u32 host32(be32 v)
{
	return __builtin_bswap32(v.raw);
}

INLINE u64 host64(be64 v)
{
	return __builtin_bswap64(v.raw);
}

/* The packet, as programs see it; the verifier knows the members by their offsets. */
struct __sk_buff {
	u32 len;
};

/* Copies len bytes at offset from the start of the packet; all of them, or none and an error. Linux 4.5. */
static long (*const bpf_skb_load_bytes)(const struct __sk_buff *skb, u32 offset, void *to, u32 len) = (void *)26;

#endif
