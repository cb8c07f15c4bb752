// Code generated from bpf/include. DO NOT EDIT.

package programs

// The constants of spread_events.h, in the order of the C enum.
const (
	EventSpread              Event = iota // data messages sent with the source port of their flow's lane
	EventFlowNew                          // flows assigned to a lane for the first time
	EventFlowReassigned                   // flows assigned to a lane again, after a silence longer than the gap
	EventNoPeer                           // data messages not spread: no configured peer has this address and port
	EventEgressFragment                   // data messages and handshakes that left in fragments, which keep the listen port
	EventEgressMalformed                  // outgoing packets not spread: the UDP length is invalid
	EventEgressError                      // data messages not spread: the kernel had no memory to rewrite them
	EventGather                           // datagrams from a peer's lane port whose source port was restored
	EventToListenPort                     // datagrams to a lane port of this host that were redirected to the listen port
	EventIngressMalformed                 // incoming packets left unchanged: the UDP length is invalid
	EventIngressError                     // datagrams left unchanged: the kernel had no memory to rewrite them
	EventPacketTooBig                     // Packet Too Big messages about a lane port of this host, whose quoted source port was restored
	EventUnproven                         // data messages not spread: the peer has not answered probes from the lane ports
	EventPaused                           // data messages not spread: spread is paused for the device or the peer
	EventProbeSent                        // probes sent to peers, from the listen port or a lane port
	EventProbeAnswer                      // answers of peers to these probes
	EventProbeReply                       // probes of peers that were answered
	EventProbeBad                         // probes and answers from a peer's address that were dropped: forged, replayed, late or through a NAT
	EventProbeError                       // probes and answers not sent: the kernel had no memory, or the device refused them
	EventPortBlocked                      // data messages not spread: the peer no longer answers probes from their lane port
	EventFragmentationNeeded              // ICMP Fragmentation Needed about packets to peers, neither TCP nor SCTP, or in fragments: dropped, since it may be forged; the error filter also counts Packet Too Big
	EventTooManyTags                      // frames with more tags of VLAN 0 than the program reads: dropped, since such an error may be behind the tags

	// EventCount is the number of constants.
	EventCount = iota
)

var eventNames = [EventCount]string{
	"spread",
	"flow_new",
	"flow_reassigned",
	"no_peer",
	"egress_fragment",
	"egress_malformed",
	"egress_error",
	"gather",
	"to_listen_port",
	"ingress_malformed",
	"ingress_error",
	"packet_too_big",
	"unproven",
	"paused",
	"probe_sent",
	"probe_answer",
	"probe_reply",
	"probe_bad",
	"probe_error",
	"port_blocked",
	"fragmentation_needed",
	"too_many_tags",
}

var eventHelps = [EventCount]string{
	"data messages sent with the source port of their flow's lane",
	"flows assigned to a lane for the first time",
	"flows assigned to a lane again, after a silence longer than the gap",
	"data messages not spread: no configured peer has this address and port",
	"data messages and handshakes that left in fragments, which keep the listen port",
	"outgoing packets not spread: the UDP length is invalid",
	"data messages not spread: the kernel had no memory to rewrite them",
	"datagrams from a peer's lane port whose source port was restored",
	"datagrams to a lane port of this host that were redirected to the listen port",
	"incoming packets left unchanged: the UDP length is invalid",
	"datagrams left unchanged: the kernel had no memory to rewrite them",
	"Packet Too Big messages about a lane port of this host, whose quoted source port was restored",
	"data messages not spread: the peer has not answered probes from the lane ports",
	"data messages not spread: spread is paused for the device or the peer",
	"probes sent to peers, from the listen port or a lane port",
	"answers of peers to these probes",
	"probes of peers that were answered",
	"probes and answers from a peer's address that were dropped: forged, replayed, late or through a NAT",
	"probes and answers not sent: the kernel had no memory, or the device refused them",
	"data messages not spread: the peer no longer answers probes from their lane port",
	"ICMP Fragmentation Needed about packets to peers, neither TCP nor SCTP, or in fragments: dropped, since it may be forged; the error filter also counts Packet Too Big",
	"frames with more tags of VLAN 0 than the program reads: dropped, since such an error may be behind the tags",
}

// The constants of classify_events.h, in the order of the C enum.
const (
	ClassifySocket       ClassifyEvent = iota // data messages redirected to the AF_XDP socket of their receive queue
	ClassifyNoSocket                          // data messages passed to the kernel: their receive queue has no AF_XDP socket
	ClassifyTooLong                           // data messages passed to the kernel: the frame is too long for AF_XDP sockets, or incomplete
	ClassifyKeepalive                         // keepalives passed to the kernel
	ClassifyInitiation                        // handshake initiations passed to the kernel, within the rate limits
	ClassifyOther                             // handshake responses, cookie replies and non-WireGuard packets passed to the kernel
	ClassifyNotLocal                          // packets passed to the kernel: their destination is not an address of this host
	ClassifyFragment                          // IP fragments passed to the kernel; only first fragments have ports and are counted
	ClassifyMalformed                         // packets passed to the kernel: the UDP length is invalid
	ClassifyMartian                           // data messages passed to the kernel: no peer can have their source address
	ClassifyUnknownIndex                      // data messages passed to the kernel: unknown receiver index, and not from a peer's endpoint

	// ClassifyEventCount is the number of constants.
	ClassifyEventCount = iota
)

var classifyEventNames = [ClassifyEventCount]string{
	"socket",
	"no_socket",
	"too_long",
	"keepalive",
	"initiation",
	"other",
	"not_local",
	"fragment",
	"malformed",
	"martian",
	"unknown_index",
}

// The constants of guard_classes.h, in the order of the C enum.
const (
	GuardClassNone    GuardClass = iota // no prefix contains the address
	GuardClassLocal                     // pods of this node
	GuardClassRemote                    // pods of another node, which the tunnel reaches
	GuardClassUnknown                   // the cluster's prefixes for pods, where no accepted prefix of a node contains the address
	GuardClassExempt                    // pods that are reached without the tunnel, as those of a node without it

	// GuardClassCount is the number of constants.
	GuardClassCount = iota
)

var guardClassNames = [GuardClassCount]string{
	"none",
	"local",
	"remote",
	"unknown",
	"exempt",
}
