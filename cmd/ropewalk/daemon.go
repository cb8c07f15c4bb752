// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// withDaemon calls f with a connection to the daemon of an interface, and closes the connection.
func withDaemon(dir uapi.Dir, name string, f func(*uapi.Client) error) error {
	client, err := dialDaemon(dir, name)
	if err != nil {
		return err
	}
	defer client.Close()
	return f(client)
}

// dialDaemon connects to the daemon of an interface. If there is none, its error has the exit code exitUnreachable.
func dialDaemon(dir uapi.Dir, name string) (*uapi.Client, error) {
	client, err := dir.Dial(name)
	switch {
	case uapi.IsNotRunning(err):
		return nil, codedError{exitUnreachable, notServed(dir, name)}
	case uapi.IsUnresponsive(err):
		return nil, codedError{exitUnreachable, err}
	case err != nil:
		return nil, withHint(err)
	}
	return client, nil
}

// notServed returns an error that distinguishes an interface without a daemon from one that does not exist.
func notServed(dir uapi.Dir, name string) error {
	if _, err := net.InterfaceByName(name); err == nil {
		return fmt.Errorf("interface %s is not served by a userspace process (no socket in %s); use wg(8) for WireGuard in the kernel", name, dir)
	}
	return fmt.Errorf("no such interface: %s", name)
}

// socketDir returns the directory of the daemons' control sockets.
func socketDir() uapi.Dir { return uapi.DefaultDir }
