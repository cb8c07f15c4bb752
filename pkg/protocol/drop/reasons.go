// Code generated from bpf/include/drop_reasons.h. DO NOT EDIT.

package drop

// The reasons, in the order of the C enum.
const (
	None             Reason = iota // not dropped
	TXVnetHeader                   // the TUN's virtio-net header does not match its packet
	TXMalformed                    // the inner packet is neither IPv4 nor IPv6, or its length is invalid
	TXNoPeer                       // no peer's allowed IPs cover the destination
	TXNoEndpoint                   // the peer has no endpoint to send to
	TXStagedOverflow               // the queue of packets waiting for a handshake was full
	TXStagedExpired                // the packet was waiting for a handshake that did not complete
	TXExhausted                    // the session may send no more messages (Reject-After-Messages)
	TXSendError                    // the kernel returned an error when sending the datagram
	TXTooBig                       // the datagram exceeds what UDP or the path can carry
	TXDown                         // the listen port is not open
	TXTUNRead                      // reading from the TUN failed
	TXNoSession                    // no session exists and none can be established, or the session ended before the packet was encrypted
	RXTooShort                     // shorter than the smallest WireGuard message
	RXBadType                      // unknown message type, or reserved bits set
	RXBadLength                    // a handshake message or cookie reply of the wrong length
	RXTruncated                    // the datagram did not fit the receive buffer
	RXUnknownIndex                 // no session or handshake has this receiver index
	RXExpired                      // the session is older than Reject-After-Time or has received Reject-After-Messages
	RXAuth                         // the authentication tag is wrong
	RXReplay                       // the counter was received before or is behind the replay window
	RXInnerMalformed               // the decrypted packet is neither IPv4 nor IPv6, or its length is invalid
	RXInnerSpoofed                 // the source address of the decrypted packet is not in the peer's allowed IPs
	RXTUNWrite                     // writing to the TUN failed
	RXDown                         // the interface is down
	RXReceive                      // receiving from the socket failed
	HSQueueFull                    // the queue of received handshake messages was full
	HSBadMAC1                      // mac1 is invalid: the sender does not know this host's public key
	HSNoCookie                     // under load, a message without a valid mac2: a cookie was sent in reply
	HSRateLimited                  // under load, a message beyond the rate limit of its source, or of cookies
	HSInvalid                      // the handshake message does not decrypt, or is not expected in the handshake's state
	HSUnknownPeer                  // a valid initiation from a public key that is not configured
	HSReplay                       // the initiation's timestamp is not later than the peer's last one
	HSFlood                        // a peer's initiation less than 20 ms after its last one
	HSBadCookie                    // a cookie reply to no message that this host sent
	HelloInvalid                   // a hello that is truncated or malformed
	HelloVersion                   // a hello of an unsupported version
	HelloUnwanted                  // a hello or a probe that is not wanted: spread is off, more than 8 of one kind came within a second, or the peer roams all the time
	HSXDPSourceLimit               // initiations beyond the rate limit of their IPv4 address or IPv6 /64, dropped in XDP
	HSXDPTotalLimit                // initiations beyond a CPU's rate limit for all sources together, dropped in XDP
	RXSocket                       // dropped by the kernel at the socket: the receive buffer was full, the socket filter refused a train of initiations, or the checksum was wrong
	RXQueueFull                    // the receive queue was full: dropped from the flow with the most bytes in it
	RXCongestion                   // the flow's packets waited in the receive queue for too long: one was dropped as a congestion signal
	TXSendBuffer                   // the send buffer was full for a handshake message, a cookie reply, a keepalive or a packet that had waited for a session: the network device is too slow
	TXQueueFull                    // the transmit queue was full: dropped from the flow with the most bytes in it
	TXCongestion                   // the flow's packets waited in the transmit queue for too long: one was dropped as a congestion signal
	TXPacketTooBig                 // the inner packet exceeds the path MTU to the peer and may not be fragmented: an ICMP error tells the sender the size
	TXLoop                         // the route to the peer's endpoint leads into the tunnel itself: the message would come back as a packet to encrypt
	TXTUNQueue                     // dropped by the kernel in front of the lanes: the TUN's queue was full
	ExchangeInvalid                // a part of a post-quantum exchange that is truncated or malformed
	ExchangeVersion                // a part of a post-quantum exchange of an unsupported version, kind or suite
	ExchangeUnwanted               // a part of a post-quantum exchange that is not wanted: PostQuantum is off or inactive, or more than 16 came within a second
	RXNotPostQuantum               // data in a session without a post-quantum key, which this host requires

	// Count is the number of reasons, None included.
	Count = iota
)

var names = [Count]string{
	"none",
	"tx_vnet_header",
	"tx_malformed",
	"tx_no_peer",
	"tx_no_endpoint",
	"tx_staged_overflow",
	"tx_staged_expired",
	"tx_exhausted",
	"tx_send_error",
	"tx_too_big",
	"tx_down",
	"tx_tun_read",
	"tx_no_session",
	"rx_too_short",
	"rx_bad_type",
	"rx_bad_length",
	"rx_truncated",
	"rx_unknown_index",
	"rx_expired",
	"rx_auth",
	"rx_replay",
	"rx_inner_malformed",
	"rx_inner_spoofed",
	"rx_tun_write",
	"rx_down",
	"rx_receive",
	"hs_queue_full",
	"hs_bad_mac1",
	"hs_no_cookie",
	"hs_rate_limited",
	"hs_invalid",
	"hs_unknown_peer",
	"hs_replay",
	"hs_flood",
	"hs_bad_cookie",
	"hello_invalid",
	"hello_version",
	"hello_unwanted",
	"hs_xdp_source_limit",
	"hs_xdp_total_limit",
	"rx_socket",
	"rx_queue_full",
	"rx_congestion",
	"tx_send_buffer",
	"tx_queue_full",
	"tx_congestion",
	"tx_packet_too_big",
	"tx_loop",
	"tx_tun_queue",
	"exchange_invalid",
	"exchange_version",
	"exchange_unwanted",
	"rx_not_post_quantum",
}

var helps = [Count]string{
	"not dropped",
	"the TUN's virtio-net header does not match its packet",
	"the inner packet is neither IPv4 nor IPv6, or its length is invalid",
	"no peer's allowed IPs cover the destination",
	"the peer has no endpoint to send to",
	"the queue of packets waiting for a handshake was full",
	"the packet was waiting for a handshake that did not complete",
	"the session may send no more messages (Reject-After-Messages)",
	"the kernel returned an error when sending the datagram",
	"the datagram exceeds what UDP or the path can carry",
	"the listen port is not open",
	"reading from the TUN failed",
	"no session exists and none can be established, or the session ended before the packet was encrypted",
	"shorter than the smallest WireGuard message",
	"unknown message type, or reserved bits set",
	"a handshake message or cookie reply of the wrong length",
	"the datagram did not fit the receive buffer",
	"no session or handshake has this receiver index",
	"the session is older than Reject-After-Time or has received Reject-After-Messages",
	"the authentication tag is wrong",
	"the counter was received before or is behind the replay window",
	"the decrypted packet is neither IPv4 nor IPv6, or its length is invalid",
	"the source address of the decrypted packet is not in the peer's allowed IPs",
	"writing to the TUN failed",
	"the interface is down",
	"receiving from the socket failed",
	"the queue of received handshake messages was full",
	"mac1 is invalid: the sender does not know this host's public key",
	"under load, a message without a valid mac2: a cookie was sent in reply",
	"under load, a message beyond the rate limit of its source, or of cookies",
	"the handshake message does not decrypt, or is not expected in the handshake's state",
	"a valid initiation from a public key that is not configured",
	"the initiation's timestamp is not later than the peer's last one",
	"a peer's initiation less than 20 ms after its last one",
	"a cookie reply to no message that this host sent",
	"a hello that is truncated or malformed",
	"a hello of an unsupported version",
	"a hello or a probe that is not wanted: spread is off, more than 8 of one kind came within a second, or the peer roams all the time",
	"initiations beyond the rate limit of their IPv4 address or IPv6 /64, dropped in XDP",
	"initiations beyond a CPU's rate limit for all sources together, dropped in XDP",
	"dropped by the kernel at the socket: the receive buffer was full, the socket filter refused a train of initiations, or the checksum was wrong",
	"the receive queue was full: dropped from the flow with the most bytes in it",
	"the flow's packets waited in the receive queue for too long: one was dropped as a congestion signal",
	"the send buffer was full for a handshake message, a cookie reply, a keepalive or a packet that had waited for a session: the network device is too slow",
	"the transmit queue was full: dropped from the flow with the most bytes in it",
	"the flow's packets waited in the transmit queue for too long: one was dropped as a congestion signal",
	"the inner packet exceeds the path MTU to the peer and may not be fragmented: an ICMP error tells the sender the size",
	"the route to the peer's endpoint leads into the tunnel itself: the message would come back as a packet to encrypt",
	"dropped by the kernel in front of the lanes: the TUN's queue was full",
	"a part of a post-quantum exchange that is truncated or malformed",
	"a part of a post-quantum exchange of an unsupported version, kind or suite",
	"a part of a post-quantum exchange that is not wanted: PostQuantum is off or inactive, or more than 16 came within a second",
	"data in a session without a post-quantum key, which this host requires",
}
