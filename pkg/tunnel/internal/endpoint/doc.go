// SPDX-License-Identifier: Apache-2.0

// Package endpoint decides about changes of a peer's endpoint: which are stale (Replaced), and how
// often the rest of the device follows them (Rounds). It also decides when a name is looked up and
// which of its addresses is used (Name).
package endpoint
