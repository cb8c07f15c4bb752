// Code generated from bpf/include/drop_reasons.h. DO NOT EDIT.

package drop

// The reasons, in the order of the C enum.
const (
	None             Reason = iota // not dropped
	TXVnetHeader                   // the TUN returned a virtio-net header that contradicts its packet
	TXMalformed                    // the inner packet is neither IPv4 nor IPv6, or lies about its length
	TXNoPeer                       // no peer's allowed IPs cover the destination
	TXNoEndpoint                   // the peer has no endpoint to send to
	TXStagedOverflow               // too much was waiting for a handshake; one had to go
	TXStagedExpired                // the handshake that packets waited for never completed
	TXExhausted                    // the session may send no more messages (Reject-After-Messages)
	TXSendError                    // the kernel refused to send the datagram
	TXTooBig                       // the datagram exceeds what UDP or the path can carry
	TXDown                         // the interface is down
	TXTUNRead                      // the TUN gave an error instead of a packet
	TXNoSession                    // there is no session and none can be made, or it ended before the packet was encrypted
	RXTooShort                     // shorter than the smallest WireGuard message
	RXBadType                      // unknown message type, or reserved bits set
	RXBadLength                    // a handshake or cookie message of the wrong length
	RXTruncated                    // the datagram did not fit the receive buffer
	RXUnknownIndex                 // no session or handshake has this receiver index
	RXExpired                      // the session is older than Reject-After-Time or has taken Reject-After-Messages
	RXAuth                         // the authentication tag is wrong
	RXReplay                       // the counter was seen before or lies behind the replay window
	RXInnerMalformed               // the decrypted packet is neither IPv4 nor IPv6, or lies about its length
	RXInnerSpoofed                 // the decrypted source address belongs to another peer or to none
	RXTUNWrite                     // the TUN refused the packet
	RXDown                         // the interface is down
	RXReceive                      // the socket gave an error instead of a datagram
	HSQueueFull                    // more handshake messages than the workers can take
	HSBadMAC1                      // mac1 is wrong: the sender does not know our public key
	HSNoCookie                     // under load and without a valid mac2: answered with a cookie
	HSRateLimited                  // under load and too many from this source address
	HSInvalid                      // the handshake does not decrypt or does not fit its state
	HSUnknownPeer                  // a valid initiation from a key that is not configured
	HSReplay                       // the initiation's timestamp is not later than the last one
	HSFlood                        // initiations from one peer faster than one per 20 ms
	HSBadCookie                    // a cookie reply that fits no message we sent
	HelloInvalid                   // a hello that is truncated or malformed
	HelloVersion                   // a hello of a version this release does not know
	HelloUnwanted                  // a hello while spreading is off, or one too many within a second
	HSSourceBudget                 // initiations from one IPv4 address or IPv6 /64 beyond its budget, dropped in XDP
	HSTotalBudget                  // initiations from all sources together beyond what one CPU lets in, dropped in XDP
	RXSocket                       // dropped by the kernel at a socket: the buffer was full, or a flood's train or a wrong checksum was refused

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
	"hs_source_budget",
	"hs_total_budget",
	"rx_socket",
}

var helps = [Count]string{
	"not dropped",
	"the TUN returned a virtio-net header that contradicts its packet",
	"the inner packet is neither IPv4 nor IPv6, or lies about its length",
	"no peer's allowed IPs cover the destination",
	"the peer has no endpoint to send to",
	"too much was waiting for a handshake; one had to go",
	"the handshake that packets waited for never completed",
	"the session may send no more messages (Reject-After-Messages)",
	"the kernel refused to send the datagram",
	"the datagram exceeds what UDP or the path can carry",
	"the interface is down",
	"the TUN gave an error instead of a packet",
	"there is no session and none can be made, or it ended before the packet was encrypted",
	"shorter than the smallest WireGuard message",
	"unknown message type, or reserved bits set",
	"a handshake or cookie message of the wrong length",
	"the datagram did not fit the receive buffer",
	"no session or handshake has this receiver index",
	"the session is older than Reject-After-Time or has taken Reject-After-Messages",
	"the authentication tag is wrong",
	"the counter was seen before or lies behind the replay window",
	"the decrypted packet is neither IPv4 nor IPv6, or lies about its length",
	"the decrypted source address belongs to another peer or to none",
	"the TUN refused the packet",
	"the interface is down",
	"the socket gave an error instead of a datagram",
	"more handshake messages than the workers can take",
	"mac1 is wrong: the sender does not know our public key",
	"under load and without a valid mac2: answered with a cookie",
	"under load and too many from this source address",
	"the handshake does not decrypt or does not fit its state",
	"a valid initiation from a key that is not configured",
	"the initiation's timestamp is not later than the last one",
	"initiations from one peer faster than one per 20 ms",
	"a cookie reply that fits no message we sent",
	"a hello that is truncated or malformed",
	"a hello of a version this release does not know",
	"a hello while spreading is off, or one too many within a second",
	"initiations from one IPv4 address or IPv6 /64 beyond its budget, dropped in XDP",
	"initiations from all sources together beyond what one CPU lets in, dropped in XDP",
	"dropped by the kernel at a socket: the buffer was full, or a flood's train or a wrong checksum was refused",
}
