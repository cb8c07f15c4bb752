// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"

	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// withDaemon calls f with a connection to the daemon of an interface.
func withDaemon(dir uapi.Dir, name string, f func(*uapi.Client) error) error {
	client, err := reach(dir, name)
	if err != nil {
		return err
	}
	defer client.Close()
	return f(client)
}

// reach connects to the daemon of an interface. Where there is none, the command exits with exitUnreachable.
func reach(dir uapi.Dir, name string) (*uapi.Client, error) {
	client, err := dir.Dial(name)
	switch {
	case uapi.IsRefused(err):
		return nil, codedError{exitUnreachable, notServed(dir, name)}
	case uapi.IsSilent(err):
		return nil, codedError{exitUnreachable, err}
	case err != nil:
		return nil, withHint(err)
	}
	return client, nil
}

// notServed tells an interface of the kernel's own WireGuard, or of any other kind, from none.
func notServed(dir uapi.Dir, name string) error {
	if _, err := net.InterfaceByName(name); err == nil {
		return fmt.Errorf("interface %s is not served by a userspace process (no socket in %s); for WireGuard in the kernel use wg(8)", name, dir)
	}
	return fmt.Errorf("no such interface: %s", name)
}

// socketDir is where the sockets of daemons are.
func socketDir() uapi.Dir { return uapi.DefaultDir }
