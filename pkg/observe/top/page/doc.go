// SPDX-License-Identifier: Apache-2.0

// Package page serves a live web page with the traffic of a tunnel per peer, lane, NIC queue and CPU.
//
// The page is a single document. It fetches nothing but /live.json from its own origin. The data has public keys only and
// no peer addresses. Start reading at Handlers; page.js draws the page.
package page
