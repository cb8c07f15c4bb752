// SPDX-License-Identifier: Apache-2.0

// Package observe groups the packages that report the state of a host or a tunnel.
//
//   - metrics: the Prometheus collector and its listener
//   - top: rates and shares of peers, lanes, NIC queues and cores; top/live and top/page draw them
//   - doctor: checks of a host as functions of facts, which doctor/facts gathers; applies and undoes fixes
//   - term, portplan: tables and bars for terminals; the drawing of ropewalk spread plan
//
// Nothing here changes a tunnel; doctor changes host settings only on request. Begin with metrics.NewCollector or doctor.Run.
package observe
