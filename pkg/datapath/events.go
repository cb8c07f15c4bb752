// Code generated from bpf/include. DO NOT EDIT.

package datapath

// The events of spread_events.h, in the order of the C enum.
const (
	EventSpread            Event = iota // data messages that left with the port of their flow's lane
	EventSpreadTrain                    // trains among them, each rewritten at once
	EventFlowNew                        // flows that took a lane for the first time
	EventFlowAgain                      // flows that took a lane again after a silence longer than the gap
	EventNoPeer                         // data messages left alone: no configured peer has this address and port
	EventSpreadFragment                 // outgoing IP fragments left alone, as far as they show their ports
	EventSpreadMalformed                // outgoing packets left alone: their headers contradict each other
	EventSpreadError                    // data messages left alone: the kernel had no memory to change them
	EventGatherSource                   // datagrams from a peer's lane port that were given its canonical port back
	EventGatherDestination              // datagrams to a lane port of ours that were given to the listen port
	EventGatherFragment                 // incoming IP fragments left alone, as far as they show their ports
	EventGatherMalformed                // incoming packets left alone: their headers contradict each other
	EventGatherError                    // datagrams left alone: the kernel had no memory to change them

	// EventCount is the number of events.
	EventCount = iota
)

var eventNames = [EventCount]string{
	"spread",
	"spread_train",
	"flow_new",
	"flow_again",
	"no_peer",
	"spread_fragment",
	"spread_malformed",
	"spread_error",
	"gather_source",
	"gather_destination",
	"gather_fragment",
	"gather_malformed",
	"gather_error",
}

var eventHelps = [EventCount]string{
	"data messages that left with the port of their flow's lane",
	"trains among them, each rewritten at once",
	"flows that took a lane for the first time",
	"flows that took a lane again after a silence longer than the gap",
	"data messages left alone: no configured peer has this address and port",
	"outgoing IP fragments left alone, as far as they show their ports",
	"outgoing packets left alone: their headers contradict each other",
	"data messages left alone: the kernel had no memory to change them",
	"datagrams from a peer's lane port that were given its canonical port back",
	"datagrams to a lane port of ours that were given to the listen port",
	"incoming IP fragments left alone, as far as they show their ports",
	"incoming packets left alone: their headers contradict each other",
	"datagrams left alone: the kernel had no memory to change them",
}

// The events of classify_events.h, in the order of the C enum.
const (
	ClassifySocket     ClassifyEvent = iota // data messages given to the AF_XDP socket of their receive queue
	ClassifySpread                          // data messages given to the CPU of their flow, which takes them up the stack
	ClassifyNoSocket                        // data messages left to the kernel: their receive queue has no socket
	ClassifyLong                            // data messages left to the kernel: sockets do not take so long a frame, or only part of it came
	ClassifyKeepalive                       // keepalives left to the kernel
	ClassifyInitiation                      // handshake initiations left to the kernel, within their budget
	ClassifyOther                           // responses, cookies, and what is no WireGuard message, left to the kernel
	ClassifyForeign                         // packets to the port at an address that is not ours, left to the kernel
	ClassifyFragment                        // IP fragments left to the kernel, as far as they show their ports
	ClassifyMalformed                       // packets left to the kernel: their headers contradict each other about the length
	ClassifyMartian                         // data messages left to the kernel: no peer can have their source address
	ClassifyUnsummed                        // data messages left to the kernel: another CPU would find their checksum, left to the device, wrong

	// ClassifyEventCount is the number of events.
	ClassifyEventCount = iota
)

var classifyEventNames = [ClassifyEventCount]string{
	"socket",
	"spread",
	"no_socket",
	"long",
	"keepalive",
	"initiation",
	"other",
	"foreign",
	"fragment",
	"malformed",
	"martian",
	"unsummed",
}

var classifyEventHelps = [ClassifyEventCount]string{
	"data messages given to the AF_XDP socket of their receive queue",
	"data messages given to the CPU of their flow, which takes them up the stack",
	"data messages left to the kernel: their receive queue has no socket",
	"data messages left to the kernel: sockets do not take so long a frame, or only part of it came",
	"keepalives left to the kernel",
	"handshake initiations left to the kernel, within their budget",
	"responses, cookies, and what is no WireGuard message, left to the kernel",
	"packets to the port at an address that is not ours, left to the kernel",
	"IP fragments left to the kernel, as far as they show their ports",
	"packets left to the kernel: their headers contradict each other about the length",
	"data messages left to the kernel: no peer can have their source address",
	"data messages left to the kernel: another CPU would find their checksum, left to the device, wrong",
}
