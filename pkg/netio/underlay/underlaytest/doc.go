// SPDX-License-Identifier: Apache-2.0

// Package underlaytest holds the contract tests of underlay.Port and
// underlay.Selector, and a network in memory for tests. Each implementation runs the contract tests in
// its own tests.
//
// Not for other programs: it may change without notice.
package underlaytest
