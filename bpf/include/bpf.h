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
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

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

/* How a map is described (tools/lib/bpf/bpf_helpers.h). */
// clang-format off
#define UINT(name, value) int (*name)[value]
#define TYPE(name, type) type *name
// clang-format on

/* Types of maps, and their flag for memory that is taken as elements come. Preallocated where it is not set. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_CPUMAP = 16,
	BPF_MAP_TYPE_XSKMAP = 17,
	BPF_F_NO_PREALLOC = 1,
};

/* The packet, as programs see it; the verifier knows the members by their offsets. */
struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping; /* on ingress the receive queue plus one, or 0 if the driver did not say */
	u32 unused[15];
	u32 data;
	u32 data_end;
	u32 more[20];
	u32 gso_segs;
	u64 sk;
	u32 gso_size; /* of a train: the bytes of payload in each segment but the last. Linux 5.7 */
};

_Static_assert(__builtin_offsetof(struct __sk_buff, data) == 76, "include/uapi/linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_segs) == 164, "include/uapi/linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_size) == 176, "include/uapi/linux/bpf.h");

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
};

/* What programs of those kinds return: TCX_NEXT is the same as TC_ACT_UNSPEC. */
enum {
	TCX_NEXT = -1,
	XDP_DROP = 1,
	XDP_PASS = 2,
	XDP_REDIRECT = 4,
};

/* Returns the element, or null. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;

/* Adds the element or replaces it. Returns 0 if there was room. */
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;

/* CLOCK_MONOTONIC in nanoseconds. */
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;

enum {
	BPF_F_RECOMPUTE_CSUM = 1,  /* keep what the device summed up over the packet true */
	BPF_F_INVALIDATE_HASH = 2, /* bpf_set_hash_invalid() without the call */
};

/* Writes into the packet, unsharing it first if need be. Pointers into the packet are invalid afterwards. */
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, u32 offset, const void *from, u32 len,
					 u64 flags) = (void *)9;

/* The size of from and to goes into flags too. */
#define BPF_F_MARK_MANGLED_0 32 /* a sum of 0 is none, and stays; one that becomes 0 is written as 0xffff */

/* Corrects a checksum for the replacement of what it covers, unless only the pseudo header is summed up so far. */
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, u32 offset, u64 from, u64 to, u64 flags) = (void *)11;

/* Copies len bytes at offset from the start of the packet; all of them, or none and an error. Linux 4.5. */
static long (*const bpf_skb_load_bytes)(const struct __sk_buff *skb, u32 offset, void *to, u32 len) = (void *)26;

/* Returns the hash of the packet's flow, which it computes if nobody has yet. Linux 4.8. */
static u32 (*const bpf_get_hash_recalc)(struct __sk_buff *skb) = (void *)34;

/* Moves the first len bytes to where data and data_end show them. Linux 4.9. */
static long (*const bpf_skb_pull_data)(struct __sk_buff *skb, u32 len) = (void *)39;

/*
 * Sends the packet to what a map of sockets, CPUs or devices has at a key, and returns XDP_REDIRECT; where it has
 * nothing, returns the verdict in the lower bits of flags. Linux 5.3.
 */
static long (*const bpf_redirect_map)(void *map, u32 key, u64 flags) = (void *)51;

/* Returns the length of an XDP packet over all its buffers. Linux 5.18. */
static u64 (*const bpf_xdp_get_buff_len)(struct xdp_md *xdp) = (void *)188;

#endif
