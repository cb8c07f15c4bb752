// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// kind is what a metric family is to Prometheus.
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

// family names one of the metric families.
type family int

const (
	buildInfo family = iota
	interfaceInfo
	interfaceUp
	featureEnabled
	lanes
	workers

	laneTransmitPackets
	laneTransmitBytes
	laneTransmitTrains
	laneTransmitRuns
	laneReceivePackets
	laneReceiveBytes
	laneReceiveTrains
	laneReceiveRuns
	laneDropped
	laneSocketDropped
	runMessages

	crewOffered
	crewCollected
	crewBackOffs

	dropped

	underlayInfo
	xdpLanes
	xdpEvents
	xdpDropped
	xdpReceived
	xdpSent
	xdpSlow
	xdpLost
	xdpFallbacks
	xdpMalformed
	xdpRejected
	xdpMisowned
	xdpHeld
	receiveCPUs

	handshakesStarted
	handshakes

	peers
	peersAggregated
	peersSpread
	lastHandshake
	selectionPlans

	peerInfo
	peerReceiveBytes
	peerTransmitBytes
	peerReceivePackets
	peerTransmitPackets
	peerDropped
	peerLastHandshake
	peerKeepalive
	peerSpreadPorts

	wgSentBytes
	wgReceivedBytes
	wgLatestHandshake

	familyCount
)

// definition is what a family looks like from outside.
type definition struct {
	name   string
	kind   kind
	help   string
	labels string // separated by spaces
}

// definitions is the closed list of families. The documentation is generated from it.
var definitions = [familyCount]definition{
	buildInfo:      {"ropewalk_build_info", gauge, "What runs; always 1.", "version goversion revision"},
	interfaceInfo:  {"ropewalk_interface_info", gauge, "What the interface is, and the ChaCha20-Poly1305 that it uses; always 1.", "interface public_key listen_port cipher"},
	interfaceUp:    {"ropewalk_interface_up", gauge, "Whether the interface is up and its UDP port open.", "interface"},
	featureEnabled: {"ropewalk_feature_enabled", gauge, "Whether a fast path is in use; where it is not, the slow one works.", "interface feature"},
	lanes:          {"ropewalk_lanes", gauge, "Lanes: TUN queues, threads and sockets.", "interface"},
	workers:        {"ropewalk_workers", gauge, "Workers of the crew, which help lanes whose flow is more than one core can carry.", "interface"},

	laneTransmitPackets: {"ropewalk_lane_transmit_packets_total", counter, "Messages sent. Lane slow is what no lane carried: keepalives, and packets that waited for a session.", "interface lane"},
	laneTransmitBytes:   {"ropewalk_lane_transmit_bytes_total", counter, "Bytes of inner packets sent.", "interface lane"},
	laneTransmitTrains:  {"ropewalk_lane_transmit_trains_total", counter, "Elements read from the TUN and sent; each is one packet or a train (TSO, USO).", "interface lane"},
	laneTransmitRuns:    {"ropewalk_lane_transmit_runs_total", counter, "Elements handed to the UDP socket; each is one message or a run (UDP_SEGMENT).", "interface lane"},
	laneReceivePackets:  {"ropewalk_lane_receive_packets_total", counter, "Inner packets received.", "interface lane"},
	laneReceiveBytes:    {"ropewalk_lane_receive_bytes_total", counter, "Bytes of inner packets received.", "interface lane"},
	laneReceiveTrains:   {"ropewalk_lane_receive_trains_total", counter, "Elements written to the TUN; each is one packet or several merged ones.", "interface lane"},
	laneReceiveRuns:     {"ropewalk_lane_receive_runs_total", counter, "Elements taken from the UDP socket; each is one message or a run (UDP_GRO).", "interface lane"},
	laneDropped:         {"ropewalk_lane_dropped_packets_total", counter, "Packets that a lane dropped, for any reason. Lane slow is handshakes and packets that waited for a session.", "interface lane"},
	laneSocketDropped:   {"ropewalk_lane_socket_dropped_total", counter, "What the kernel dropped at the socket of a lane, a coalesced train counted as one, and lane slow at those of its sources. It is among the lane's dropped packets, as rx_socket.", "interface lane"},
	runMessages:         {"ropewalk_run_messages", histogram, "Messages in one element that passed between the lanes and their UDP sockets.", "interface direction"},

	crewOffered:   {"ropewalk_crew_offered_units_total", counter, "Units of a lane that were offered to the crew, to be sealed or opened on another core.", "interface lane direction"},
	crewCollected: {"ropewalk_crew_collected_units_total", counter, "Units offered to the crew that are done: by a worker, or by the lane, which took them back.", "interface lane direction by"},
	crewBackOffs:  {"ropewalk_crew_back_offs_total", counter, "How often a lane stopped offering units for a while, because it did not pay.", "interface lane direction"},

	dropped: {"ropewalk_dropped_packets_total", counter, "Packets dropped, by reason; docs/metrics.md explains each.", "interface stage reason"},

	underlayInfo: {"ropewalk_underlay_info", gauge, "By what way (udp, xdp) data messages enter and leave, as configured (mode, auto too) and as it is; always 1.", "interface mode way device how"},
	xdpLanes:     {"ropewalk_xdp_lanes", gauge, "Lanes with an AF_XDP socket that works.", "interface"},
	xdpEvents:    {"ropewalk_xdp_packets_total", counter, "What the XDP program made of packets to the port that it let pass.", "interface event"},
	xdpDropped:   {"ropewalk_xdp_dropped_packets_total", counter, "Packets that the XDP program dropped, by reason; not among ropewalk_dropped_packets_total.", "interface reason"},
	xdpReceived:  {"ropewalk_xdp_receive_datagrams_total", counter, "Datagrams received by an AF_XDP socket.", "interface lane"},
	xdpSent:      {"ropewalk_xdp_transmit_datagrams_total", counter, "Datagrams sent by an AF_XDP socket.", "interface lane"},
	xdpSlow:      {"ropewalk_xdp_slow_runs_total", counter, "Runs that left by the lane's UDP socket instead.", "interface lane"},
	xdpLost:      {"ropewalk_xdp_lost_datagrams_total", counter, "Datagrams that the device did not take in time, or went away with.", "interface lane"},
	xdpFallbacks: {"ropewalk_xdp_fallbacks_total", counter, "How often a working AF_XDP socket was lost; the UDP socket takes over.", "interface lane"},
	xdpMalformed: {"ropewalk_xdp_malformed_datagrams_total", counter, "Malformed datagrams at an AF_XDP socket.", "interface lane"},
	xdpRejected:  {"ropewalk_xdp_rejected_frames_total", counter, "Frames of an AF_XDP socket that were refused because what described them was malformed; 0 but for faults.", "interface lane"},
	xdpMisowned:  {"ropewalk_xdp_misowned_frames_total", counter, "Frames of an AF_XDP socket that were named by who did not have them; 0 but for faults.", "interface lane"},
	xdpHeld:      {"ropewalk_xdp_held_frames", gauge, "Frames of an AF_XDP socket that are out: received and not given back (rx), being written (tx), or with the kernel and not sent yet (kernel).", "interface lane by"},
	receiveCPUs:  {"ropewalk_receive_cpus", gauge, "Processors over which the kernel spreads what UDP sockets receive (--rx-cpus); absent where that is not asked for.", "interface device"},

	handshakesStarted: {"ropewalk_handshakes_started_total", counter, "Handshakes begun: as initiator, initiations sent, those of retries too; as responder, responses sent.", "interface role"},
	handshakes:        {"ropewalk_handshakes_total", counter, "Handshakes that ended: completed, or, as initiator, gave_up after 90 s. What is refused counts as a drop of the stage handshake.", "interface role result"},

	peers:           {"ropewalk_peers", gauge, "Peers: established (a handshake in the last 180 s), idle (an older one) or never (none yet).", "interface state"},
	peersAggregated: {"ropewalk_peers_aggregated", gauge, "Whether there are no metrics of single peers, because there are too many or they are off.", "interface"},
	peersSpread:     {"ropewalk_peers_spread", gauge, "Peers whose flows are spread over source ports.", "interface"},
	lastHandshake:   {"ropewalk_last_handshake_timestamp_seconds", gauge, "When the latest handshake with any peer was complete, in Unix time; 0 for never.", "interface"},
	selectionPlans:  {"ropewalk_selection_plans", gauge, "Peers' plans by which lanes of what arrives are chosen: wanted, and in_force.", "interface state"},

	peerInfo:            {"ropewalk_peer_info", gauge, "What a peer is; always 1. Join it by interface and public_key.", "interface public_key endpoint allowed_ips"},
	peerReceiveBytes:    {"ropewalk_peer_receive_bytes_total", counter, "Bytes of WireGuard messages received from a peer, as wg(8) counts.", "interface public_key"},
	peerTransmitBytes:   {"ropewalk_peer_transmit_bytes_total", counter, "Bytes of WireGuard messages sent to a peer, as wg(8) counts.", "interface public_key"},
	peerReceivePackets:  {"ropewalk_peer_receive_packets_total", counter, "WireGuard messages received from a peer, handshakes and keepalives too.", "interface public_key"},
	peerTransmitPackets: {"ropewalk_peer_transmit_packets_total", counter, "WireGuard messages sent to a peer, handshakes and keepalives too.", "interface public_key"},
	peerDropped:         {"ropewalk_peer_dropped_packets_total", counter, "Messages of a peer's session that were refused on the way in (receive), and messages to it, or packets before they became such, that were given up (transmit); ropewalk_dropped_packets_total has why, and more.", "interface public_key direction"},
	peerLastHandshake:   {"ropewalk_peer_last_handshake_timestamp_seconds", gauge, "When the latest handshake with a peer was complete, in Unix time; 0 for never. An idle peer makes none.", "interface public_key"},
	peerKeepalive:       {"ropewalk_peer_persistent_keepalive_seconds", gauge, "The interval of persistent keepalives to a peer; 0 for off.", "interface public_key"},
	peerSpreadPorts:     {"ropewalk_peer_spread_ports", gauge, "Source ports that the flows to a peer are spread over; 0 when they are not.", "interface public_key"},

	wgSentBytes:       {"wireguard_sent_bytes_total", counter, "Bytes sent to the peer.", "interface public_key allowed_ips"},
	wgReceivedBytes:   {"wireguard_received_bytes_total", counter, "Bytes received from the peer.", "interface public_key allowed_ips"},
	wgLatestHandshake: {"wireguard_latest_handshake_seconds", gauge, "Unix time of the last handshake with the peer; 0 for never.", "interface public_key allowed_ips"},
}

// optional tells which families are there only when asked for (Options.WireGuardNames).
func (f family) optional() bool { return f >= wgSentBytes }

// descriptors returns what client_golang knows of the families.
func descriptors() (d [familyCount]*prometheus.Desc) {
	for f, def := range definitions {
		d[f] = prometheus.NewDesc(def.name, def.help, strings.Fields(def.labels), nil)
	}
	return d
}
