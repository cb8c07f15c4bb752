// SPDX-License-Identifier: Apache-2.0

// Package term formats terminal output: SGR colours, bars and numbers. Start reading at Style.
//
// Not for other programs: it may change without notice.
package term
