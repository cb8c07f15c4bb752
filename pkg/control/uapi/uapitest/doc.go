// SPDX-License-Identifier: Apache-2.0

// Package uapitest helps to test clients and servers of package uapi. It has a fake device
// (fake.go), random statuses (random.go), and the installed wg(8), run with a test's own socket
// directory (stock.go). Only tests import it.
//
// Not for other programs: it may change without notice.
package uapitest
