// SPDX-License-Identifier: Apache-2.0

// Package lab groups measurements and demonstrations on one machine.
//
//   - netlab: network namespaces, veth cables with several queues, captures
//   - traffic: the traffic generator behind ropewalk traffic
//   - testbed: one tunnel between two hosts, and the figures that can be taken of it
//   - bench: the measurements of ropewalk bench; demo: the run of ropewalk demo
//
// It drives daemons as processes, from outside. Begin with netlab.New.
package lab
