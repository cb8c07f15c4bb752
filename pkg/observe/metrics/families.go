// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// kind is the Prometheus type of a metric family.
type kind string

const (
	counter   kind = "counter"
	gauge     kind = "gauge"
	histogram kind = "histogram"
)

func (k kind) valueType() prometheus.ValueType {
	if k == counter {
		return prometheus.CounterValue
	}
	return prometheus.GaugeValue
}

// family is a metric family as Prometheus and the documentation show it.
type family struct {
	name string
	kind kind
	help string
	desc *prometheus.Desc
	// labels are separated by spaces.
	labels string
}

// list is a closed list of families. docs/metrics.md is generated from it.
type list []*family

// add adds a family, whose labels are separated by spaces.
func (l *list) add(name string, k kind, help, labels string) *family {
	f := &family{name, k, help, prometheus.NewDesc(name, help, strings.Fields(labels), nil), labels}
	*l = append(*l, f)
	return f
}

// sample returns one sample of a family.
func (f *family) sample(v float64, labels ...string) prometheus.Metric {
	m, err := prometheus.NewConstMetric(f.desc, f.kind.valueType(), v, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(f.desc, fmt.Errorf("exporting the metric %s: %w", f.name, err))
	}
	return m
}

// families are the families of every program and of a tunnel. A tunnel with Options.WireGuardNames
// has wireGuardFamilies too.
var families, wireGuardFamilies list

var (
	buildInfo      = families.add("ropewalk_build_info", gauge, "Version of the running program; always 1.", "version goversion revision")
	interfaceInfo  = families.add("ropewalk_interface_info", gauge, "Public key and port of the interface, and its ChaCha20-Poly1305 implementation; always 1.", "interface public_key listen_port cipher")
	interfaceUp    = families.add("ropewalk_interface_up", gauge, "1 if the interface is up and its UDP port is open, else 0.", "interface")
	featureEnabled = families.add("ropewalk_feature_enabled", gauge, "1 if the feature of the fast path is in use, 0 if its fallback is.", "interface feature")
	lanes          = families.add("ropewalk_lanes", gauge, "Number of lanes. Each has a TUN queue, two threads and a socket.", "interface")
	workers        = families.add("ropewalk_workers", gauge, "Number of workers. They encrypt and decrypt for lanes whose flow exceeds one core.", "interface")

	laneTransmitPackets = families.add("ropewalk_lane_transmit_packets_total", counter, "Messages sent. Lane slow counts those sent outside the lanes: keepalives, and packets that waited for a session.", "interface lane")
	laneTransmitBytes   = families.add("ropewalk_lane_transmit_bytes_total", counter, "Bytes of inner packets sent.", "interface lane")
	laneTransmitTrains  = families.add("ropewalk_lane_transmit_trains_total", counter, "Packets and trains (TSO, USO) read from the TUN device and sent.", "interface lane")
	laneTransmitRuns    = families.add("ropewalk_lane_transmit_runs_total", counter, "Messages and runs of messages (UDP_SEGMENT) passed to the UDP socket.", "interface lane")
	laneReceivePackets  = families.add("ropewalk_lane_receive_packets_total", counter, "Inner packets received.", "interface lane")
	laneReceiveBytes    = families.add("ropewalk_lane_receive_bytes_total", counter, "Bytes of inner packets received.", "interface lane")
	laneReceiveTrains   = families.add("ropewalk_lane_receive_trains_total", counter, "Packets and trains (GRO) written to the TUN device.", "interface lane")
	laneReceiveRuns     = families.add("ropewalk_lane_receive_runs_total", counter, "Messages and runs of messages (UDP_GRO) received from the UDP socket.", "interface lane")
	laneMarks           = families.add("ropewalk_lane_congestion_marks_total", counter, "Inner packets that this host marked with ECN CE because their flow waited in the transmit or receive queue for too long. A flow that cannot be marked loses a packet instead, with reason tx_congestion or rx_congestion.", "interface lane direction")
	sprayPackets        = families.add("ropewalk_spray_packets_total", counter, "Packets of sprayed flows, sent and received. Some of the received ones waited for earlier ones, others arrived when the lane no longer waited for them (late). Unordered ones were not put in order, because they arrived at several lanes or the peer had too many streams. Skipped ones were lost or late.", "interface event")
	sprayRefused        = families.add("ropewalk_spray_refused_sessions_total", counter, "Sessions in which this host did not let the peer spray flows, because other sessions have the memory for their replay windows.", "interface")
	icmpErrors          = families.add("ropewalk_icmp_errors_total", counter, "ICMP errors for packets that are too big for the path to the peer, or have no peer or endpoint. They are sent to the packets' senders, this host or hosts behind it, or limited. Host Unreachable is limited to 1,000 a second and lane, the errors of path MTU discovery are not.", "interface result")
	laneDropped         = families.add("ropewalk_lane_dropped_packets_total", counter, "Packets that a lane dropped, for any reason. Lane slow counts handshake messages and packets that waited for a session.", "interface lane")
	laneSocketDropped   = families.add("ropewalk_lane_socket_dropped_total", counter, "Buffers that the kernel dropped at the lane's socket; a run coalesced by GRO is one. Lane slow counts those at the sockets of spread source ports. The dropped packets of the lane include an estimate of the messages in them, with reason rx_socket.", "interface lane")
	udpWithoutGSO       = families.add("ropewalk_udp_destinations_without_gso", gauge, "Destination addresses to which the kernel refused UDP_SEGMENT in the last two minutes, because of a device without transmit checksums or IPsec. Runs to them are sent as single datagrams.", "interface")
	udpLosingTrains     = families.add("ropewalk_udp_destinations_losing_trains", gauge, "Destination addresses to which trains sent with UDP_SEGMENT were lost on the way while single datagrams arrived. Runs to them are sent as single datagrams.", "interface")
	udpBatchMessages    = families.add("ropewalk_udp_batch_messages", histogram, "Messages per run passed between the lanes and their UDP sockets; a single message is a run of 1.", "interface direction")

	workerSubmitted = families.add("ropewalk_worker_jobs_submitted_total", counter, "Encryption and decryption jobs that a lane submitted to the workers.", "interface lane direction")
	workerCompleted = families.add("ropewalk_worker_jobs_completed_total", counter, "Submitted jobs that were completed, by a worker or by the lane itself.", "interface lane direction by")
	workerBackoffs  = families.add("ropewalk_worker_backoffs_total", counter, "Times that a lane paused submitting jobs because the workers did not speed it up.", "interface lane direction")

	dropped = families.add("ropewalk_dropped_packets_total", counter, "Packets dropped, by reason; docs/metrics.md explains each. Reason rx_socket is an estimate.", "interface stage reason")
	stalls  = families.add("ropewalk_stalls_total", counter, "Parts of a tunnel that took packets and made no progress. A lane did not return from a batch for 10 s (transmit, receive). Packets waited for a session without a handshake (staged). A transmit queue's send buffer had no room for a minute (queued). A device did not send the frames of an AF_XDP socket (xdp). Not 0 means a bug in ropewalk, the kernel or a driver; for queued also a network device that has stopped sending.", "interface kind")

	underlayInfo = families.add("ropewalk_underlay_info", gauge, "Configured mode (auto, udp, xdp) and current path (udp, xdp) of data messages, with the device and the AF_XDP bind mode (zerocopy, copy); always 1.", "interface mode path device xdp_mode")
	xdpLanes     = families.add("ropewalk_xdp_lanes", gauge, "Lanes with a working AF_XDP socket.", "interface")
	xdpEvents    = families.add("ropewalk_xdp_packets_total", counter, "Packets to the listen port that the XDP program did not drop, by verdict.", "interface event")
	xdpDropped   = families.add("ropewalk_xdp_dropped_packets_total", counter, "Packets that the XDP program dropped, by reason. ropewalk_dropped_packets_total does not include them.", "interface reason")
	xdpReceived  = families.add("ropewalk_xdp_receive_datagrams_total", counter, "Datagrams received by an AF_XDP socket.", "interface lane")
	xdpSent      = families.add("ropewalk_xdp_transmit_datagrams_total", counter, "Datagrams sent by an AF_XDP socket.", "interface lane")
	xdpUDPRuns   = families.add("ropewalk_xdp_udp_runs_total", counter, "Runs that the lane sent by its UDP socket instead of its AF_XDP socket.", "interface lane")
	xdpLost      = families.add("ropewalk_xdp_lost_datagrams_total", counter, "Datagrams queued on an AF_XDP socket that were not sent: the device refused them, was too slow or was removed.", "interface lane")
	xdpFallbacks = families.add("ropewalk_xdp_fallbacks_total", counter, "Times that an AF_XDP socket failed and the lane's UDP socket took over.", "interface lane")
	xdpMalformed = families.add("ropewalk_xdp_malformed_datagrams_total", counter, "Malformed datagrams received by an AF_XDP socket.", "interface lane")
	xdpRejected  = families.add("ropewalk_xdp_rejected_frames_total", counter, "Frames rejected because their AF_XDP descriptor was invalid. Not 0 means a bug in a driver or in ropewalk.", "interface lane")
	xdpOwnership = families.add("ropewalk_xdp_frame_ownership_errors_total", counter, "AF_XDP descriptors that named a frame which their sender did not own. Not 0 means a bug in a driver or in ropewalk.", "interface lane")
	xdpHeld      = families.add("ropewalk_xdp_held_frames", gauge, "Frames of an AF_XDP socket in use: received and not yet returned (rx), being written (tx), or waiting in the kernel to be sent (kernel).", "interface lane by")

	handshakesStarted = families.add("ropewalk_handshakes_started_total", counter, "Handshakes started: initiations sent, with retries (initiator), and responses sent (responder).", "interface role")
	handshakes        = families.add("ropewalk_handshakes_total", counter, "Handshakes that ended: completed, or gave_up after 90 s (initiator). Refused ones are drops of the stage handshake.", "interface role result")
	reflector         = families.add("ropewalk_reflector_datagrams_total", counter, "Datagrams that reached the reflector through the tunnel: answered, or ignored (no requests, of no peer, or too many).", "interface result")

	peers              = families.add("ropewalk_peers", gauge, "Peers: established (a handshake in the last 180 s), idle (an older one) or never (none yet).", "interface state")
	peersAggregated    = families.add("ropewalk_peers_aggregated", gauge, "1 if metrics of single peers are off, or omitted because there are too many peers; else 0.", "interface")
	peersSpread        = families.add("ropewalk_peers_spread", gauge, "Peers whose flows are spread over source ports.", "interface")
	peersFailing       = families.add("ropewalk_peers_unanswered", gauge, "Peers that have not answered the last three or more handshake initiations.", "interface")
	peersPostQuantum   = families.add("ropewalk_peers_post_quantum", gauge, "Peers by the session in use: active (it has a key of a post-quantum exchange), none, downgraded (sessions had keys, and have none for 30 s) or blocked (PostQuantum = required, and no key).", "interface state")
	exchanges          = families.add("ropewalk_post_quantum_exchanges_total", counter, "Post-quantum exchanges that ended: completed, timeout, mismatch or malformed. Those that this host refused: limited (the peer wants too many), glare (both ends began one).", "interface result")
	exchangeFallbacks  = families.add("ropewalk_post_quantum_fallbacks_total", counter, "Handshakes in which the peer did not have the post-quantum key that was named: it has restarted.", "interface")
	exchangeDowngrades = families.add("ropewalk_post_quantum_downgrades_total", counter, "How often sessions with a peer had no post-quantum key any more for 30 s.", "interface")
	oldestKey          = families.add("ropewalk_post_quantum_oldest_key_seconds", gauge, "Age of the oldest post-quantum key in use; 0 if there is none.", "interface")
	pathMTUErrors      = families.add("ropewalk_path_mtu_icmp_errors_total", counter, "ICMP errors that report a path MTU: believed, because they quote a message of a present session; or ignored.", "interface result")
	lastHandshake      = families.add("ropewalk_last_handshake_timestamp_seconds", gauge, "Unix time of the latest completed handshake with any peer; 0 if there was none.", "interface")
	selectionPlans     = families.add("ropewalk_selection_plans", gauge, "Peers with a plan that maps received source ports to lanes: wanted, and in_force.", "interface state")

	peerInfo            = families.add("ropewalk_peer_info", gauge, "Name, endpoint and allowed IPs of a peer; always 1. Join it on job, instance, interface and public_key.", "interface public_key name endpoint allowed_ips")
	peerReceiveBytes    = families.add("ropewalk_peer_receive_bytes_total", counter, "Bytes of WireGuard messages received from a peer, as wg(8) counts.", "interface public_key")
	peerTransmitBytes   = families.add("ropewalk_peer_transmit_bytes_total", counter, "Bytes of WireGuard messages sent to a peer, as wg(8) counts.", "interface public_key")
	peerReceivePackets  = families.add("ropewalk_peer_receive_packets_total", counter, "WireGuard messages received from a peer, including handshakes and keepalives.", "interface public_key")
	peerTransmitPackets = families.add("ropewalk_peer_transmit_packets_total", counter, "WireGuard messages sent to a peer, including handshakes and keepalives.", "interface public_key")
	peerDropped         = families.add("ropewalk_peer_dropped_packets_total", counter, "Messages from a peer that its session refused (receive), and packets and messages to the peer that were dropped (transmit). ropewalk_dropped_packets_total has the reasons, and drops without a peer.", "interface public_key direction")
	peerLastHandshake   = families.add("ropewalk_peer_last_handshake_timestamp_seconds", gauge, "Unix time of the latest completed handshake with a peer; 0 if there was none. An idle peer makes no handshakes.", "interface public_key")
	peerKeepalive       = families.add("ropewalk_peer_persistent_keepalive_seconds", gauge, "Interval of persistent keepalives to a peer; 0 if they are off.", "interface public_key")
	peerSpreadPorts     = families.add("ropewalk_peer_spread_ports", gauge, "Source ports over which the flows to a peer are spread; 0 if they are not.", "interface public_key")
	peerBlockedPorts    = families.add("ropewalk_peer_blocked_ports", gauge, "Source ports to a peer that the path does not admit; their flows leave from the listen port.", "interface public_key")
	peerPathMTU         = families.add("ropewalk_peer_path_mtu_bytes", gauge, "Largest outer IP packet to a peer, by probes, the MTU of the route, or an ICMP error; 0 if unknown, as before the first session.", "interface public_key")
	peerPathMTUInfo     = families.add("ropewalk_peer_path_mtu_info", gauge, "How the path MTU to a peer is known: confirmed or searching, by probes; route, icmp or host; unreachable, if no probe is answered; or unknown. Always 1. Join it on job, instance, interface and public_key.", "interface public_key state")
	peerUnanswered      = families.add("ropewalk_peer_unanswered_initiations", gauge, "Handshake initiations to a peer since the last complete handshake, without the last one.", "interface public_key")

	wgSentBytes       = wireGuardFamilies.add("wireguard_sent_bytes_total", counter, "Bytes sent to the peer.", "interface public_key allowed_ips")
	wgReceivedBytes   = wireGuardFamilies.add("wireguard_received_bytes_total", counter, "Bytes received from the peer.", "interface public_key allowed_ips")
	wgLatestHandshake = wireGuardFamilies.add("wireguard_latest_handshake_seconds", gauge, "Unix time of the last handshake with the peer; 0 if there was none.", "interface public_key allowed_ips")
)
