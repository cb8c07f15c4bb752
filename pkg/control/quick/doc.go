// SPDX-License-Identifier: Apache-2.0

// Package quick brings tunnel interfaces up and down from the files of
// wg-quick(8), with ropewalk's daemon instead of the kernel's WireGuard. Addresses, routes, rules,
// firewall rules and resolvconf entries are the same as with wg-quick, so either tool can take down
// an interface of the other.
//
// The commands up, down, save and strip call it. Start reading with Plan in plan.go, a pure
// function that returns the steps. Runner in runner.go (Up) and down.go (Down) executes the steps,
// and undoes them in reverse when one fails. step.go has the Step interface and the small steps.
// The other steps are in daemon.go and stop.go (the daemon's process), dns.go, firewall.go and
// policy.go. present.go reads what the kernel has, and readback.go compares it with the plan.
// state.go has the state that must survive the command. Reload in reload.go executes the steps
// that difference.go computes. Its function is also pure: it takes the settings of the file, of
// the last Up and of the host.
//
// Not for other programs: it may change without notice.
package quick
