// SPDX-License-Identifier: Apache-2.0

// Package show prints the status of devices exactly as wg(8) does (compared byte
// for byte with version 1.0.20210914), and as JSON. It reads neither the environment nor the clock:
// the caller passes their values in Options.
//
// The commands show and showconf call it, as does package conffile for addresses. Start reading with Options in show.go, then Pretty in
// pretty.go, Select in selector.go and JSON in json.go. lanes.go and stats.go have the fields that wg(8) does not have.
//
// Not for other programs: it may change without notice.
package show
