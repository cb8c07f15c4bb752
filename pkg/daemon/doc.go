// SPDX-License-Identifier: Apache-2.0

// Package daemon puts a tunnel together that runs in this process: the TUN and its steering, the crew, the device, the control
// socket, and what watches the host for them. It hands all of that over to another process, or takes it over from one.
package daemon
