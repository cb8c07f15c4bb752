/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_SIPHASH_H
#define ROPEWALK_SIPHASH_H

#include "bpf.h"

/* SipHash-2-4 (Aumasson and Bernstein, 2012). */

struct siphash_key {
	u64 k[2];
};

INLINE u64 rotate(u64 v, u32 bits)
{
	return v << bits | v >> (64 - bits);
}

INLINE void sip_round(u64 v[4])
{
	v[0] += v[1];
	v[2] += v[3];
	v[1] = rotate(v[1], 13) ^ v[0];
	v[3] = rotate(v[3], 16) ^ v[2];
	v[0] = rotate(v[0], 32);
	v[2] += v[1];
	v[0] += v[3];
	v[1] = rotate(v[1], 17) ^ v[2];
	v[3] = rotate(v[3], 21) ^ v[0];
	v[2] = rotate(v[2], 32);
}

/* Hashes 32 bytes. It is a function of its own: inlined, it would be most of each program. */
static __attribute__((noinline)) u64 siphash(const struct siphash_key *key, const u64 *words)
{
	u64 v[4] = {key->k[0] ^ 0x736f6d6570736575, key->k[1] ^ 0x646f72616e646f6d, key->k[0] ^ 0x6c7967656e657261,
		    key->k[1] ^ 0x7465646279746573};

#pragma unroll
	for (u32 i = 0; i <= 4; i++) {
		u64 word = i < 4 ? words[i] : 32ULL << 56;

		v[3] ^= word;
		sip_round(v);
		sip_round(v);
		v[0] ^= word;
	}
	v[2] ^= 0xff;
#pragma unroll
	for (u32 i = 0; i < 4; i++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
