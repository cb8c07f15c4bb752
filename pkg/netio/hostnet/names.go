// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// A static program cannot call getaddrinfo(3), which reads /etc/nsswitch.conf and /etc/gai.conf.
// Go's resolver does not know names of NSS modules (mDNS, systemd's resolve and mymachines, LDAP),
// and its order of addresses is fixed. getent(1) asks the C library.

// ErrNoGetent is the error of Getent without that program.
var ErrNoGetent = errors.New("this host has no getent")

// getentTimeout leaves time for Go's resolver. A module of nsswitch.conf(5) may hang, and the C
// library waits five seconds for each name server by default.
const getentTimeout = 5 * time.Second

// Getent returns the addresses of a host name as getaddrinfo(3) has them, in its order, with zones. It executes `getent ahosts`.
func Getent(ctx context.Context, host string) ([]netip.Addr, error) {
	program, err := exec.LookPath("getent")
	if err != nil {
		return nil, ErrNoGetent
	}
	if host == "" || host[0] == '-' { // not every getent knows "--"
		return nil, errors.New("not a host name")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, getentTimeout, errors.New("no answer in time"))
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "ahosts", host)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	switch exit, ok := errors.AsType[*exec.ExitError](err); {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case ok && exit.ExitCode() == 2: // getent(1); also if a name server does not answer
		return nil, errors.New("no address")
	case err != nil:
		return nil, err
	}
	return parseAhosts(out)
}

// parseAhosts returns the addresses in the output of `getent ahosts`, which has a line for each address and type of socket.
func parseAhosts(out []byte) (addrs []netip.Addr, err error) {
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), " ")
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("unexpected output %.40q", lines.Text())
		}
		if addr = addr.Unmap(); !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	if len(addrs) == 0 {
		return nil, errors.New("no address")
	}
	return addrs, nil
}

// LookUpHost returns the addresses of a host name, from Getent or else from Go's resolver. Its
// error is a *LookupError, unless there is no getent.
func LookUpHost(ctx context.Context, host string) ([]netip.Addr, error) {
	addrs, getentErr := Getent(ctx, host)
	if getentErr == nil {
		return addrs, nil
	}
	found, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil && !errors.Is(getentErr, ErrNoGetent) {
		err = &LookupError{Getent: getentErr, DNS: err}
	}
	return Addrs(found), err
}

// LookupError is the error of a name that neither resolver knows. Only the error of Go's resolver,
// a *net.DNSError, tells whether another attempt may help.
type LookupError struct{ Getent, DNS error }

// Error says which resolver failed how.
func (e *LookupError) Error() string {
	return fmt.Sprintf("getent ahosts: %v; Go's resolver: %v", e.Getent, e.DNS)
}

// Unwrap returns the error of Go's resolver.
func (e *LookupError) Unwrap() error { return e.DNS }

// Addrs converts the result of net.Resolver.LookupIPAddr, with zones and without 4-in-6 forms. net.Resolver.LookupNetIP omits zones.
func Addrs(found []net.IPAddr) []netip.Addr {
	addrs := make([]netip.Addr, 0, len(found))
	for _, f := range found {
		if a, ok := netip.AddrFromSlice(f.IP); ok {
			addrs = append(addrs, a.Unmap().WithZone(f.Zone))
		}
	}
	return addrs
}
