// SPDX-License-Identifier: Apache-2.0

// Package portplan simulates how flows load a NIC's receive queues, with the flow
// table and port plan of package spread.
//
// It compares three strategies to choose a flow's source port: by hash, least loaded, and planned from the NIC's RSS
// configuration. Start reading at Simulation.Run.
//
// Not for other programs: it may change without notice.
package portplan
