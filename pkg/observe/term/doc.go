// SPDX-License-Identifier: Apache-2.0

// Package term, ropewalk's own, formats terminal output: SGR colours, bars and numbers. Start reading at Style.
package term
