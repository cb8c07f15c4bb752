// SPDX-License-Identifier: Apache-2.0

// Package lab is the room of measurements and demonstrations on the machine at hand.
//
//   - netlab: network namespaces, veth cables with several queues, captures
//   - traffic: the traffic generator behind ropewalk traffic
//   - bench: what ropewalk bench measures; demo: what ropewalk demo shows
//
// It drives daemons as processes, from outside. Begin with netlab.New.
package lab
