// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
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

// startingTimeout is the time for which commands that configure an interface wait for its daemon, which may just be starting.
const startingTimeout = 2 * time.Second

// withStartingDaemon is withDaemon, and waits for a daemon that is starting.
func withStartingDaemon(ctx context.Context, dir uapi.Dir, name string, f func(*uapi.Client) error) error {
	deadline := time.Now().Add(startingTimeout)
	for {
		client, err := dir.Dial(name)
		if err == nil {
			defer client.Close()
			return f(client)
		}
		if link, _ := hostnet.FindLink(name); !uapi.IsNotRunning(err) || link.Kind == "wireguard" || time.Now().After(deadline) {
			return withDaemon(dir, name, f) // a last try, for its error with exit code and hint
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// dialDaemon connects to the daemon of an interface. If there is none, its error has the exit code exitUnreachable.
func dialDaemon(dir uapi.Dir, name string) (*uapi.Client, error) {
	client, err := dir.Dial(name)
	switch {
	case uapi.IsUnresponsive(err), errors.Is(err, uapi.ErrNotSocket):
		return nil, codedError{exitUnreachable, err}
	case uapi.IsNotRunning(err):
		return nil, codedError{exitUnreachable, notServed(dir, name)}
	case err != nil:
		return nil, withHint(err)
	}
	return client, nil
}

// notServed returns an error that distinguishes an interface without a daemon from an interface
// that does not exist.
func notServed(dir uapi.Dir, name string) error {
	if former := formerNames(dir, name); len(former) > 0 {
		return fmt.Errorf("interface %s has no control socket in %s: if it was renamed, its daemon answers by the former name: %s", name, dir, strings.Join(former, ", "))
	}
	if _, err := net.InterfaceByName(name); err == nil {
		return fmt.Errorf("interface %s is not served by a userspace process (no socket in %s); use wg(8) for WireGuard in the kernel", name, dir)
	}
	return fmt.Errorf("no such interface: %s", name)
}

// tunKind is hostnet.Link.Kind of a TUN device.
const tunKind = "tuntap"

// formerNames returns the names that a renamed TUN device may have had: those with a daemon and without an interface.
func formerNames(dir uapi.Dir, name string) []string {
	link, err := hostnet.FindLink(name)
	if err != nil || link.Kind != tunKind {
		return nil
	}
	names, _ := dir.Interfaces() // an error means none
	return slices.DeleteFunc(names, func(n string) bool {
		_, err := hostnet.FindLink(n)
		return err == nil
	})
}

// socketDir returns the directory of the daemons' control sockets.
func socketDir() uapi.Dir { return uapi.DefaultDir }
