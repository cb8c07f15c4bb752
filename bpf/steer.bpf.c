// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

/*
 * steer: the queue of a TUN that an inner packet or train goes to (TUNSETSTEERINGEBPF). The driver takes the low 16
 * bits of what is returned, modulo the number of queues. Without this it sends a flow to the queue on which the
 * opposite direction was last written, and that is for the sender's network to choose.
 */

#include "include/bpf.h"
#include "include/flow_hash.h"

SEC("socket")
int steer(struct __sk_buff *skb)
{
	return flow_hash(skb);
}

const char LICENSE[] SEC("license") = "Dual BSD/GPL";
