// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// Resolver resolves an endpoint, written as in a file: address:port, [address%zone]:port or name:port.
type Resolver func(ctx context.Context, endpoint string) (config.Endpoint, error)

// Forever makes a Resolver retry without limit.
const Forever = -1

const (
	defaultRetries = 15
	firstDelay     = time.Second
	maxDelay       = 20 * time.Second
)

// ParseRetries reads the value of WG_ENDPOINT_RESOLUTION_RETRIES: a number, "infinity" for Forever, 15 when empty.
func ParseRetries(value string) (int, error) {
	switch value {
	case "":
		return defaultRetries, nil
	case "infinity":
		return Forever, nil
	}
	n, err := strconv.ParseUint(value, 10, 31)
	if err != nil {
		return 0, fmt.Errorf(`parsing the number of endpoint resolution retries: want a number or "infinity", got %q`, value)
	}
	return int(n), nil
}

// ResolverConfig configures a Resolver. The zero value uses this host's resolver and interfaces, without retries.
type ResolverConfig struct {
	Retries int                                                          // after temporary errors; or Forever
	IP      func(ctx context.Context, host string) ([]netip.Addr, error) // in order of preference
	Wait    func(ctx context.Context, d time.Duration) error             // between two attempts
	OnRetry func(endpoint string, err error, next time.Duration)         // called before each wait; may be nil
}

// NewResolver returns a Resolver. It uses the first address of a name. It retries lookups that failed with a temporary error, after 1 s
// and then 1.2 times longer each time, up to 20 s, as wg(8) does.
func NewResolver(l ResolverConfig) Resolver {
	if l.IP == nil {
		l.IP = hostnet.LookUpHost
	}
	if l.Wait == nil {
		l.Wait = wait
	}
	return l.resolve
}

func (l *ResolverConfig) resolve(ctx context.Context, endpoint string) (config.Endpoint, error) {
	hp, err := splitEndpoint(endpoint)
	if err != nil {
		return config.Endpoint{}, fmt.Errorf("resolving endpoint %q: %w", endpoint, err)
	}
	addr, err := l.address(ctx, endpoint, hp.host)
	if err != nil {
		return config.Endpoint{}, fmt.Errorf("resolving endpoint %q: %w", endpoint, explainLookup(err))
	}
	ep, err := uapi.NewEndpoint(netip.AddrPortFrom(addr, hp.port))
	if err != nil {
		return config.Endpoint{}, fmt.Errorf("resolving endpoint %q: %w", endpoint, err)
	}
	return ep, nil
}

// address parses a literal address. It looks a name up, with retries.
func (l *ResolverConfig) address(ctx context.Context, endpoint, host string) (netip.Addr, error) {
	if addr, ok := parseHost(host); ok {
		return addr, nil
	}
	delay := firstDelay
	for attempt := 0; ; attempt++ {
		addrs, err := l.IP(ctx, host)
		if err == nil && len(addrs) > 0 {
			return addrs[0], nil
		}
		if err == nil {
			err = errors.New("name has no address")
		}
		if !isTemporary(err) || attempt == l.Retries {
			return netip.Addr{}, err
		}
		if l.OnRetry != nil {
			l.OnRetry(endpoint, explainLookup(err), delay)
		}
		if werr := l.Wait(ctx, delay); werr != nil {
			return netip.Addr{}, errors.Join(err, werr)
		}
		delay = min(delay*6/5, maxDelay)
	}
}

// isTemporary reports whether a lookup may succeed later: the name server or the network failed, not the name.
func isTemporary(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && !dns.IsNotFound && (dns.IsTemporary || dns.IsTimeout)
}

// lookupError is an error of a lookup with a text for people.
type lookupError struct {
	error
	text string
}

// Error returns the text.
func (e lookupError) Error() string { return e.text }

// Unwrap returns the library's error.
func (e lookupError) Unwrap() error { return e.error }

// explainLookup replaces the text of the library's error, which has addresses of the exchange with the name server.
func explainLookup(err error) error {
	dns, ok := errors.AsType[*net.DNSError](err)
	text := ""
	switch {
	case !ok:
		return err
	case dns.IsNotFound:
		text = fmt.Sprintf("there is no address for the name %q", dns.Name)
	case dns.IsTimeout:
		text = "the name server does not answer in time"
	default:
		text = fmt.Sprintf("looking up %q failed: the name server is not reachable or reported an error", dns.Name)
	}
	if both, ok := errors.AsType[*hostnet.LookupError](err); ok {
		text += fmt.Sprintf(" (getent ahosts: %v)", both.Getent)
	}
	return lookupError{err, text}
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// hostPort is an endpoint whose host may be a name.
type hostPort struct {
	host string
	port uint16
}

// splitEndpoint splits at the last colon. IPv6 addresses need no brackets, as in wg(8).
func splitEndpoint(s string) (hostPort, error) {
	var host, port string
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return hostPort{}, errors.New("no port")
	}
	host, port = s[:i], s[i+1:]
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if host, ok = strings.CutSuffix(inner, "]"); !ok {
			return hostPort{}, errors.New("no port after the closing bracket")
		}
	}
	n, err := parsePort(port)
	if err != nil {
		return hostPort{}, err
	}
	if host == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '[' || r == ']' }) {
		return hostPort{}, fmt.Errorf("not a host: %q", host)
	}
	return hostPort{host: host, port: n}, nil
}

// parsePort parses a port as getaddrinfo(3) does: a decimal number, or the name of a UDP service (services(5)).
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil {
		return uint16(n), nil
	}
	if strings.Trim(s, "+-0123456789") == "" { // among them the empty one, which LookupPort takes for 0
		return 0, fmt.Errorf("port is not a number from 0 to 65535: %q", s)
	}
	named, err := net.LookupPort("udp", s)
	if err != nil {
		return 0, fmt.Errorf("port is neither a number from 0 to 65535 nor a UDP service: %q", s)
	}
	return uint16(named), nil
}
