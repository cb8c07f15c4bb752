// SPDX-License-Identifier: Apache-2.0

// Package conffile reads and writes the configuration files of wg(8) and wg-quick(8), and parses
// the arguments of `wg set`. It converts both to changes of a device ([config.Device]). [Load]
// reads a file, and [File.Device] returns the change that gives a device exactly its settings and
// peers.
//
// Package quick and the commands setconf, addconf, syncconf, set, showconf and strip call it.
// Start reading with File in file.go. Load in load.go and Parse in parse.go read a file. They use
// the key tables in keys.go (wg), keys_quick.go (wg-quick) and keys_ropewalk.go. File methods in
// device.go, sync.go and format.go make changes and text of it. args.go has `wg set`, endpoint.go
// the resolution of names.
package conffile
