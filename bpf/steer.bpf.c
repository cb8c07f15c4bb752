// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

/*
 * steer: chooses the TUN queue of an inner packet or train (TUNSETSTEERINGEBPF). The driver takes the low 16 bits of
 * the result modulo the number of queues. Without this program the driver uses the queue on which the flow's opposite
 * direction was last written: that of the lane that received it.
 */

#include "include/bpf.h"
#include "include/flow_hash.h"

SEC("socket")
int steer(struct __sk_buff *skb)
{
	return flow_hash(skb);
}

const char LICENSE[] SEC("license") = "Dual BSD/GPL";
