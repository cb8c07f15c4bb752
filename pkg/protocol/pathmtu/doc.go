// SPDX-License-Identifier: Apache-2.0

// Package pathmtu finds the largest IP packet that crosses the path to a peer without fragmentation: Datagram Packetization
// Layer Path MTU Discovery (RFC 8899). Search is a state machine without I/O and without a clock. Its owner sends the probes and
// reports the answers, and the timer of an idle peer stays off.
//
// A search begins with the largest packet that data can have. One answer completes it. If three such probes are lost while a
// probe of the base size is answered, the path is a black hole (section 4.3): data is limited to the base size, and a search
// between the two follows, of common MTUs first. Afterwards the size is confirmed while data is sent (section 5.1.1), and a
// larger one is tried from time to time (PMTU_RAISE_TIMER).
//
// Flows may take several paths, one per source port. A size holds only if it passes on all of them. When data begins to flow, each is
// tried once, and then they take turns.
package pathmtu
