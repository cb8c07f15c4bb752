// SPDX-License-Identifier: Apache-2.0

// Package pace bounds the work that peers can cause: by a rate (Rate), and by a number at a time
// (Turns).
package pace
