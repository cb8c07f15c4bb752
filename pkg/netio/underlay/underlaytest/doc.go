// SPDX-License-Identifier: Apache-2.0

// Package underlaytest, ropewalk's own, holds the contract tests of underlay.Port and
// underlay.Selector, and a network in memory for tests. Each implementation runs the contract tests in
// its own tests.
package underlaytest
