// SPDX-License-Identifier: Apache-2.0

// Package underlaytest, ropewalk's own, holds the contract tests of underlay.Port and
// underlay.Selector. Each implementation runs them in its own tests.
package underlaytest
