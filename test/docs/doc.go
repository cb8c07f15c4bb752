// SPDX-License-Identifier: Apache-2.0

// Package docs tests the documentation: it runs the commands, checks the links and compares tables with the code.
// cmd/ropewalk has the tests that need its commands as Go values.
//
// Each block fenced as sh runs as root in a sandbox, from the root of the repository. The sandbox has its own network, mount and
// PID namespaces and an overlay over this machine's files. An HTML comment in the line before the block selects a fixture:
//
//	<!-- test: host -->              eth0 connects to another host with a tunnel; wg0.conf exists, wg0 is down (the default)
//	<!-- test: tunnel -->            like host, and wg0 is up, with metrics at 127.0.0.1:9820
//	<!-- test: untidy -->            like tunnel, and there is a setting that doctor fixes
//	<!-- test: wg_quick -->          like host, and wg-quick has brought up wg0, with wireguard-go if the kernel has no WireGuard
//	<!-- test: program -->           only /tmp/ropewalk, no eth0
//	<!-- test: nothing -->           no fixture
//	<!-- test: next -->              the same sandbox, after the block before
//	<!-- not run: REASON -->         does not run; only its shell syntax is checked
//
// The word `findings` after the fixture accepts the exit codes 3 and 4, with which ropewalk reports findings.
package docs
