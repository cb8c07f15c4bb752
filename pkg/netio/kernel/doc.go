// SPDX-License-Identifier: Apache-2.0

// Package kernel reads the release of the running Linux, for limits that cannot be probed.
//
// A caller compares numbers of kernel.org. Releases that cannot be read, and distributions with a
// numbering of their own, are for the caller to judge. Some limits count them as new, others as
// vulnerable. The package imports nothing of ropewalk. Start reading at Uname.
//
// Not for other programs: it may change without notice.
package kernel
