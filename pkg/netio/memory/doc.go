// SPDX-License-Identifier: Apache-2.0

// Package memory returns memory of the process that is not in use to the operating system.
//
// A program's own pages are most of an idle process's resident memory. The start of this program,
// with all packages that it links, touches two thirds of its text and read-only data once. The
// kernel maps the page cache, so the pages cost nothing to get back, but counts them for each
// process. Start reading at GiveBack.
//
// Not for other programs: it may change without notice.
package memory
