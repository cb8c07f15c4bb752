/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_MESSAGE_H
#define ROPEWALK_MESSAGE_H

#include "bpf.h"

/* WireGuard's messages (paper, section 5.4), as little-endian loads see them. */

/* Types, each with its three reserved zeros. */
enum {
	INITIATION = 1,
	DATA_MESSAGE = 4,
};

enum {
	INITIATION_LEN = 148,
	MAC2_OFFSET = 132,  /* in an initiation: 16 bytes, zeros while its sender has no cookie */
	KEEPALIVE_LEN = 32, /* what carries no inner packet is a header and a tag */
};

/* How every message begins. */
struct message {
	u32 type;
	u32 index; /* of a data message: its receiver's */
};

#endif
