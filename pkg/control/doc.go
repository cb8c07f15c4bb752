// SPDX-License-Identifier: Apache-2.0

// Package control groups the ways to configure and query an interface.
//
//   - uapi: the control socket of wg(8), client and server
//   - conffile: the configuration files of wg(8) and wg-quick(8); show: the output of wg show
//   - quick: the work of wg-quick, as a plan of steps that can be printed and undone
//
// All exchange the values of protocol/config and know no device. Begin with uapi.Handler or conffile.Load.
package control
