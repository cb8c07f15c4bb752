/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef ROPEWALK_SPREAD_EVENTS_H
#define ROPEWALK_SPREAD_EVENTS_H

/*
 * What spread and gather did to packets of configured tunnels; of all others nothing is counted. Go's datapath.Event is
 * generated from it (make generate). Each line is `EVENT_NAME, // help`. Datagrams of a train count one by one. Append
 * only, before SPREAD_EVENTS; another length is another layout of the maps.
 */
enum spread_event {
	EVENT_SPREAD,             // data messages that left with the port of their flow's lane
	EVENT_SPREAD_TRAIN,       // trains among them, each rewritten at once
	EVENT_FLOW_NEW,           // flows that took a lane for the first time
	EVENT_FLOW_AGAIN,         // flows that took a lane again after a silence longer than the gap
	EVENT_NO_PEER,            // data messages left alone: no configured peer has this address and port
	EVENT_SPREAD_FRAGMENT,    // outgoing IP fragments left alone, as far as they show their ports
	EVENT_SPREAD_MALFORMED,   // outgoing packets left alone: their headers contradict each other
	EVENT_SPREAD_ERROR,       // data messages left alone: the kernel had no memory to change them
	EVENT_GATHER_SOURCE,      // datagrams from a peer's lane port that were given its canonical port back
	EVENT_GATHER_DESTINATION, // datagrams to a lane port of ours that were given to the listen port
	EVENT_GATHER_FRAGMENT,    // incoming IP fragments left alone, as far as they show their ports
	EVENT_GATHER_MALFORMED,   // incoming packets left alone: their headers contradict each other
	EVENT_GATHER_ERROR,       // datagrams left alone: the kernel had no memory to change them
	SPREAD_EVENTS,
};

#endif
