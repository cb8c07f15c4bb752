// SPDX-License-Identifier: Apache-2.0

// Package docs holds the documentation to the truth: its commands are run, its links followed, its tables compared with the
// code. cmd/ropewalk has the tests that need the commands themselves.
//
// A block that is fenced as sh is run, in network, mount and PID namespaces that end with it, as root, in a layer over this
// machine's files, from the root of the repository. A comment in the line before says how:
//
//	<!-- test: host -->              eth0 leads to another host with a tunnel; wg0.conf is there, wg0 is down. So it is without comment.
//	<!-- test: tunnel -->            and wg0 is up, with metrics at 127.0.0.1:9820
//	<!-- test: untidy -->            and there is something that doctor mends
//	<!-- test: wg_quick -->          and wg0 is up by wg-quick and wireguard-go
//	<!-- test: program -->           nothing, but /tmp/ropewalk
//	<!-- test: nothing -->           not even eth0
//	<!-- test: next -->              where the block before has ended
//	<!-- not run: REASON -->         it is not; its shell is checked
//
// `findings` behind the fixture accepts the exit codes 3 and 4 of ropewalk, by which it says what it found.
package docs
