// SPDX-License-Identifier: Apache-2.0

// Package bench is `ropewalk bench`. Run measures a machine: the rates of its cores, its TUN and its sockets, and a tunnel in a
// testbed.Lab. A Verdict names the limiting factor of the tunnel. Begin with Run.
//
// Not for other programs: it may change without notice.
package bench
