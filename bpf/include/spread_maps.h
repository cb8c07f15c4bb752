/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_SPREAD_MAPS_H
#define ROPEWALK_SPREAD_MAPS_H

#include "bpf.h"
#include "siphash.h"
#include "spread_events.h"

/*
 * Configuration and maps of the spread program (egress) and the gather program (ingress). The maps are pinned and
 * outlive the programs. Global variables are not pinned. A change of the maps' layout, or of the meaning of a value,
 * needs a new layout number in Go (pins.go), which is part of the pins' path.
 *
 * A lane is here a source port towards a peer, or its index in peer.lane. A tick is 65,536 ns of CLOCK_MONOTONIC.
 */
enum {
	SPREAD_PORTS = 65536,
	SPREAD_FLOWS = 65536,
	SPREAD_LANES = 64, /* per peer */
	PROBE_BURST = 16, /* probes, which a new peer has */
	SPREAD_PEERS = 16384,
	SPREAD_ADDRESSES = 65536,
	SPREAD_TUNNELS = 8, /* whose peers' path MTUs are protected (toobig.h) */
	SPREAD_QUEUES = 256, /* receive queues with a counter; the last one also counts all further queues */
};

/* Whether packets begin with an Ethernet header. Those of TUN, WireGuard and IP tunnel devices do not. */
volatile const u8 l2 = 1;

/* The index of the device with the program: the zone of link-local addresses in its packets (RFC 4007). */
volatile const u32 device;

struct settings {
	u64 flowlet_gap; /* how long a flow must be silent before it may change its lane, in ticks */
	u32 paused;	 /* by user space: data messages to all peers keep the listen port */
	u32 unused;
	be16 tunnels[SPREAD_TUNNELS]; /* their listen ports, up to the first 0 */
};

struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct settings);
} settings SEC(".maps");

/* The tunnel to which a UDP port of this host belongs. */
struct local_port {
	be16 listen_port; /* of the tunnel that has this port as listen port or lane port; 0: no tunnel has it */
};

/* By port in host order. */
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, SPREAD_PORTS);
	TYPE(key, u32);
	TYPE(value, struct local_port);
} local_ports SEC(".maps");

/*
 * In all maps, IPv4 addresses are mapped into IPv6 (RFC 4291, section 2.5.5.2). A link-local address has its zone, the index of its device, in
 * words[1], which is 0 in packets (section 2.5.6).
 */
struct address {
	be32 words[4];
};

/* Addresses of this host, without those of the loopback network. */
struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, SPREAD_ADDRESSES);
	TYPE(key, struct address);
	TYPE(value, u8);
} addresses SEC(".maps");

/* A peer's endpoint and its tunnel. */
struct peer_key {
	be32 address[4];
	be16 port;        /* of the endpoint */
	be16 listen_port; /* of the tunnel on this host */
};

/*
 * A source port towards a peer: its load (lane.h), and its probes (probe.h). A message needs one or two cache lines of its lane. Bit i
 * of a mask belongs to the round that was i rounds before.
 */
struct lane {
	u64 load;     /* bytes recently sent, packed */
	be16 port;    /* 0: none has this index */
	u16 messages; /* number of messages since the last probe */
	u32 proof;    /* peer.proof when a probe was last answered. The lane is open if that is the present value */
	u32 round;    /* of the last probe, and bit 0 of the masks */
	u32 sent;     /* the rounds with a probe */
	u32 answered; /* those whose probe was answered */
	u16 lost;     /* probes lost in a row in rounds before those of the masks */
	u16 probed;   /* when the last probe left, in units of PROBE_TICK */
};

/* A peer as the spread program needs it: the destination of egress messages. */
struct peer {
	u32 lanes;  /* number of lanes, with those that have no port; 0: data messages to this peer are not spread */
	u32 first;  /* modulo lanes: where the search for the least loaded lane begins */
	u16 paused; /* by user space: data messages to the peer keep the listen port */
	u16 number; /* of the peer among all of the host, from 1: flow entries have it */
	u32 keyed;  /* the keys are set. Without them no lane can be proved, so the peer's messages keep the listen port */
	struct siphash_key send;    /* of this host's probes and their answers */
	struct siphash_key receive; /* of the peer's */
	u64 secret; /* random: this host's probes have it, so an answer comes from where they arrive. A peer has the keys wherever it is */
	u64 round_at; /* when the round began, in nanoseconds */
	u32 round;
	u16 answers; /* the peer answers probes from the listen port; 0: it is silent */
	u16 credit;  /* number of probes that may be sent (probe.h) */
	u32 proof;   /* changes when the peer has become silent: proofs from before do not count */
	u16 ready;   /* each lane has been probed. Until then none is used, or the first one would get all flows */
	u16 next;    /* the lane to prove next */
	u32 seen;    /* for user space: epoch (lane.h) of the last message to the peer, spread or not; 0: none */
	u8 stalled;  /* of and for user space: WireGuard receives nothing from the peer */
	u8 unseen;   /* of and for user space: no message to the peer passes this program */
	u16 proved;  /* for user space: the peer has answered a probe from this address, also if it is silent now */
	struct lane listen; /* the listen port. Its masks are those of the rounds */
	struct lane lane[SPREAD_LANES];
};

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, SPREAD_PEERS);
	TYPE(key, struct peer_key);
	TYPE(value, struct peer);
} peers SEC(".maps");

struct source_key {
	be32 address[4];
	be16 listen_port; /* of the tunnel on this host */
	u16 unused;
};

enum {
	HEARD_PORTS = 1024,
	HEARD_WORDS = HEARD_PORTS / 64,
};

/* A peer as the gather program needs it: the sender of ingress messages, whose source port it restores. */
struct source {
	be16 endpoint_port;
	u16 first; /* lowest of the peer's lane ports, in host order */
	u16 last;  /* highest */
	u16 proved; /* as in struct peer. Until then the address may be a third party's, which the peer only claims */
	u64 heard_at; /* when the last authentic probe came, in nanoseconds */
	/*
	 * The lane ports from which authentic probes came, a bit each, by port modulo HEARD_PORTS. A NAT may have chosen any other port. CPUs that set two bits at
	 * once may lose one, until the port's next probe.
	 */
	u64 heard[HEARD_WORDS];
};

struct {
	UINT(type, BPF_MAP_TYPE_HASH);
	UINT(map_flags, BPF_F_NO_PREALLOC);
	UINT(max_entries, SPREAD_PEERS);
	TYPE(key, struct source_key);
	TYPE(value, struct source);
} sources SEC(".maps");

/* Packed flow entries (lane.h) of all tunnels, by the upper 16 bits of the flow's hash. Equal ones share an entry. */
struct {
	UINT(type, BPF_MAP_TYPE_ARRAY);
	UINT(max_entries, SPREAD_FLOWS);
	TYPE(key, u32);
	TYPE(value, u64);
} flows SEC(".maps");

/* The lane ports of an address from which a CPU received, as of a jiffy; jiffies 0: the slot is invalid. */
struct recent_source {
	u64 jiffies;
	be32 address[4];
	be16 listen_port;
	be16 endpoint_port;
	u16 first;
	u16 last; /* below first: the address has no lane ports */
	u16 proved;
	u64 heard[HEARD_WORDS];
};

#define RECENT_BITS 3

/* An address of this host, as of a jiffy. */
struct recent_address {
	u64 jiffies;
	be32 words[4];
};

/* The state of one CPU: event counters, and caches of addresses. They are one value: a packet needs one lookup. */
struct counters {
	u64 events[SPREAD_EVENTS];
	struct recent_address local;
	struct recent_source recent[1 << RECENT_BITS]; /* by address */
};

struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, u32);
	TYPE(value, struct counters);
} counters SEC(".maps");

/* Datagrams received for tunnels, by receive queue. */
struct {
	UINT(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	UINT(max_entries, SPREAD_QUEUES);
	TYPE(key, u32);
	TYPE(value, u64);
} queues SEC(".maps");

/* Returns the entry of a port that belongs to a tunnel, or null. */
INLINE struct local_port *find_local_port(be16 port)
{
	u32 key = host16(port);
	struct local_port *found = bpf_map_lookup_elem(&local_ports, &key);

	return found && found->listen_port.raw ? found : 0;
}

/* Returns this CPU's counters. The map always has them, but the verifier wants to see a check for null. */
INLINE struct counters *find_counters(void)
{
	u32 key = 0;

	return bpf_map_lookup_elem(&counters, &key);
}

INLINE void count(struct counters *cpu, enum spread_event event, u64 n)
{
	cpu->events[event] += n;
}

/*
 * The time at which a CPU first asked for it in a jiffy. All CPUs share it. Two that begin a jiffy together differ by
 * the time between their reads, so users compare times as signed numbers.
 *
 * CPUs may reorder the two stores or loads, so a reader may see one member of this jiffy and one of an earlier one.
 * Then sum - now is not this jiffy, since time and jiffies only grow.
 */
volatile struct {
	u64 now; /* in ns */
	u64 sum; /* now plus jiffies */
} clock;

/*
 * Returns CLOCK_MONOTONIC in nanoseconds, at most one jiffy old. Reading that clock costs as much as a lookup in a hash
 * table, reading the jiffies only a load.
 */
INLINE u64 monotonic(void)
{
	u64 jiffies = bpf_jiffies64(), now = clock.now;

	if (clock.sum - now != jiffies) {
		now = bpf_ktime_get_ns();
		clock.now = now;
		clock.sum = now + jiffies;
	}
	return now;
}

INLINE void count_queue(u32 queue, u64 n)
{
	u32 key = queue < SPREAD_QUEUES ? queue : SPREAD_QUEUES - 1;
	u64 *datagrams = bpf_map_lookup_elem(&queues, &key);

	if (datagrams)
		*datagrams += n;
}

#endif
