// SPDX-License-Identifier: Apache-2.0

// Package config holds the configuration of a device (Device, Peer) and its status (Status).
//
// The UAPI socket, the configuration files, `show` and the device itself exchange these values. The package is pure: it
// holds values and their text forms, and does no I/O. Start reading at Device and Status.
package config
