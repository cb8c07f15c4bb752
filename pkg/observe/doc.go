// SPDX-License-Identifier: Apache-2.0

// Package observe groups the packages that report the state of a host or a tunnel.
//
//   - metrics: the Prometheus collector and its listener
//   - top: rates and shares of peers, lanes, NIC queues and cores; top/host reads the host's counters, top/live draws
//     the result
//   - doctor: checks of a host, computed from the facts that doctor/facts gathers; can apply fixes and undo them
//   - term: tables and bars for terminals
//   - portplan: simulation of queue load, drawn by ropewalk spread plan
//
// Nothing here changes a tunnel; doctor changes host settings only on request. Begin with metrics.NewCollector, top.Compare or
// doctor.Examine.
package observe
