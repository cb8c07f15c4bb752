/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_ECHO_MAPS_H
#define ROPEWALK_ECHO_MAPS_H

#include "siphash.h"

/* The state of the echo (echo.h) with one peer. Bit i of a mask belongs to the round that was i rounds before. */

struct lane_echo {
	u32 round;     /* of the last probe, and bit 0 of the masks */
	u32 sent;      /* the rounds with a probe from this lane's port */
	u32 answered;  /* those whose probe was answered */
	u32 evaluated; /* echo.answers when the lane was last evaluated */
	u32 blocked;   /* the path does not admit the lane's port, so its messages keep the listen port */
};

struct echo {
	struct siphash_key send;    /* of this host's probes and their answers */
	struct siphash_key receive; /* of the peer's */
	u64 round_at;		    /* when the round began, in nanoseconds */
	u32 on;			    /* the keys are set */
	u32 round;
	u32 answered; /* the rounds whose probe from the listen port was answered */
	u32 answers;  /* number of these answers; 0: the peer never answered */
	struct lane_echo lanes[64];
};

#endif
