/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_BPF_H
#define ROPEWALK_BPF_H

/*
 * The parts of the kernel's eBPF interface (include/uapi/linux/bpf.h) that the programs use. The build includes no system
 * header, so every machine with the pinned clang produces the same object files.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;
typedef long long s64;

/* Values in network order have their own types. host16(), host32() and host64() convert them. */
typedef struct {
	u16 raw;
} be16;
typedef struct {
	u32 raw;
} be32;
typedef struct {
	u64 raw;
} be64;

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the host must be little-endian");

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

/* BTF map definitions: __uint and __type of tools/lib/bpf/bpf_helpers.h. */
// clang-format off
#define UINT(name, value) int (*name)[value]
#define TYPE(name, type) type *name
// clang-format on

/* Map types, and the flag that allocates elements on demand. */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_XSKMAP = 17,
	BPF_F_NO_PREALLOC = 1,
};

/* The packet context. The verifier identifies the members by their offsets. */
struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping; /* on ingress the receive queue plus one; 0: not recorded by the driver */
	u32 protocol;
	u32 vlan_present; /* the tag that the kernel keeps outside the packet's data */
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority; /* for queueing disciplines */
	u32 ingress_ifindex; /* of the device on which this network namespace received the packet; 0: it was sent here */
	u32 ifindex;
	u32 tc_index;
	u32 cb[5]; /* scratch, which clones inherit */
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
	u32 more[20];
	u32 gso_segs;
};

_Static_assert(__builtin_offsetof(struct __sk_buff, vlan_tci) == 24, "include/uapi/linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, ingress_ifindex) == 36, "include/uapi/linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, cb) == 48, "include/uapi/linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, data) == 76, "include/uapi/linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_segs) == 164, "include/uapi/linux/bpf.h");

struct xdp_md {
	u32 data;
	u32 data_end;
	u32 data_meta;
	u32 ingress_ifindex;
	u32 rx_queue_index;
};

/* Return codes of tc and XDP programs. TCX_NEXT equals TC_ACT_UNSPEC. */
enum {
	TCX_NEXT = -1,
	TCX_DROP = 2,
	TCX_REDIRECT = 7,
	XDP_DROP = 1,
	XDP_PASS = 2,
	XDP_TX = 3,
	XDP_REDIRECT = 4,
};

/* Returns the element, or null. */
static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;

/* Adds or replaces the element. Returns 0, or an error if the map is full. */
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;

/* CLOCK_MONOTONIC in nanoseconds. */
static u64 (*const bpf_ktime_get_ns)(void) = (void *)5;

enum {
	BPF_F_RECOMPUTE_CSUM = 1, /* update the device's checksum over the packet (CHECKSUM_COMPLETE) */
};

/* Writes into the packet, after unsharing it if needed. Invalidates all pointers into the packet. */
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, u32 offset, const void *from, u32 len,
					 u64 flags) = (void *)9;

/* A checksum of 0 means none and is kept. A result of 0 is written as 0xffff. */
#define BPF_F_MARK_MANGLED_0 32

/*
 * Updates a checksum after a replacement, except where it covers only the pseudo-header (CHECKSUM_PARTIAL). The low bits
 * of flags hold the size of from and to.
 */
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, u32 offset, u64 from, u64 to, u64 flags) = (void *)11;

/* Updates an IPv4 header's checksum after a replacement. The low bits of flags hold the size of from and to. */
static long (*const bpf_l3_csum_replace)(struct __sk_buff *skb, u32 offset, u64 from, u64 to, u64 flags) = (void *)10;

/* Sends a clone of the packet through a device. Invalidates all pointers into the packet. Linux 4.2. */
static long (*const bpf_clone_redirect)(struct __sk_buff *skb, u32 ifindex, u64 flags) = (void *)13;

/* Returns the verdict that sends the packet through a device. Linux 4.4. */
static long (*const bpf_redirect)(u32 ifindex, u64 flags) = (void *)23;

/* Returns the difference of the Internet checksums of two buffers, for bpf_l4_csum_replace. Linux 4.6. */
static s64 (*const bpf_csum_diff)(be32 *from, u32 from_size, be32 *to, u32 to_size, u32 seed) = (void *)28;

/* Sets the packet's length, and makes a train one packet. Invalidates all pointers into the packet. Linux 4.9. */
static long (*const bpf_skb_change_tail)(struct __sk_buff *skb, u32 len, u64 flags) = (void *)38;

/* Copies len bytes at offset from the start of the packet: either all of them, or none and an error. Linux 4.5. */
static long (*const bpf_skb_load_bytes)(const struct __sk_buff *skb, u32 offset, void *to, u32 len) = (void *)26;

enum {
	BPF_HDR_START_NET = 1,
};

/*
 * Copies len bytes at offset from the network header, whatever the device's own header. It reads
 * only the linear part, between data and data_end. Linux 4.18.
 */
static long (*const bpf_skb_load_bytes_relative)(const struct __sk_buff *skb, u32 offset, void *to, u32 len,
						 u32 start) = (void *)68;

/* Returns the hash of the packet's flow, and computes it if needed. Linux 4.8. */
static u32 (*const bpf_get_hash_recalc)(struct __sk_buff *skb) = (void *)34;

/* Forgets the hash of the packet's flow, so that the kernel computes that of its present headers. Linux 4.9. */
static void (*const bpf_set_hash_invalid)(struct __sk_buff *skb) = (void *)41;

/* Moves the first len bytes into the linear part, between data and data_end. Linux 4.9. */
static long (*const bpf_skb_pull_data)(struct __sk_buff *skb, u32 len) = (void *)39;

/* Returns the kernel's 64-bit jiffies. Linux 5.5. */
static u64 (*const bpf_jiffies64)(void) = (void *)118;

/*
 * Redirects the packet to the socket, CPU or device that the map has at that key, and returns XDP_REDIRECT. If the map
 * has none, it returns the action in the lower bits of flags. Linux 5.3.
 */
static long (*const bpf_redirect_map)(void *map, u32 key, u64 flags) = (void *)51;

/* Returns the length of an XDP packet over all its buffers. Linux 5.18. */
static u64 (*const bpf_xdp_get_buff_len)(struct xdp_md *xdp) = (void *)188;

#endif
