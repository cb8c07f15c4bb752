/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_WIREGUARD_H
#define ROPEWALK_WIREGUARD_H

#include "bpf.h"

/* WireGuard's messages (paper, section 5.4), as little-endian loads read them. */

/* Message types, each together with its three reserved zero bytes. */
enum {
	INITIATION = 1,
	DATA_MESSAGE = 4,
};

enum {
	INITIATION_LEN = 148,
	MAC2_OFFSET = 132,  /* in an initiation: 16 bytes, all zero while the sender has no cookie */
	KEEPALIVE_LEN = 32, /* a data message without an inner packet: header and authentication tag */
};

/* The first bytes of every message. */
struct message {
	u32 type;
	u32 index; /* in a data message: the receiver index */
};

#endif
