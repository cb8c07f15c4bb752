// SPDX-License-Identifier: Apache-2.0

// Package admission decides which handshake messages a device handles, and in which order.
//
// Under load a flood fills the queue of handshake messages. The messages of peers would then wait
// for their turn behind the flood, or find no room. Each try would succeed with the share of
// messages that workers can handle. Therefore lanes look at each message before they queue it
// (triage), and workers keep a share of their time for a second, reserved queue. That queue takes
//
//   - messages with a valid mac2, whose address is proven: as many per address as the limiter allows
//   - messages from the endpoint of a peer: 20 per second and address, 5 at once. The answer is a cookie.
//   - responses and cookie replies to a receiver index of ours: 8 per second and peer
//
// Other messages are queued while their source may have a cookie (cookieLimit), and dropped beyond.
//
// A sender that forges the endpoint of a peer can use up the reserved share of that address only.
// Messages beyond a limit, and messages that find the reserved queue full, have the same chance as
// without it.
package admission
