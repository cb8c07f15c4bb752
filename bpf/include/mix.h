/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_MIX_H
#define ROPEWALK_MIX_H

#include "bpf.h"

/* A bijective mixing function: every bit of the input affects every bit of the output. */
INLINE u64 mix(u64 x)
{
	const u64 odd = 0xd6e8feb86659fd93ULL;

	x ^= x >> 32;
	x *= odd;
	x ^= x >> 32;
	x *= odd;
	return x ^ x >> 32;
}

#endif
