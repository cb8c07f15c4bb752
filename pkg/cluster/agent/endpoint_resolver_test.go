// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// named returns a selected external peer with a host name.
func named(endpointName string) []mesh.ExternalPeer {
	return []mesh.ExternalPeer{{Name: "gateway", EndpointName: endpointName, Selected: true}}
}

func TestEndpointNameIsResolvedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lookups, triggers := 0, 0
		r := newEndpointResolver(nil, slog.New(slog.DiscardHandler), func() { triggers++ })
		r.lookup = func(context.Context, string) (config.Endpoint, error) {
			if lookups++; lookups == 1 {
				return config.Endpoint{}, errors.New("no such host")
			}
			return config.Endpoint{AddrPort: netip.MustParseAddrPort("198.51.100.7:51820")}, nil
		}
		peers := named("vpn.example.org:51820")
		for range 2 {
			if got := r.resolve(t.Context(), peers); got[0].Endpoint.IsValid() {
				t.Errorf("got %s before it was resolved", got[0].Endpoint)
			}
		}
		time.Sleep(2 * resolveRetryPeriod)
		synctest.Wait()
		got := r.resolve(t.Context(), peers)
		if got[0].Endpoint.String() != "198.51.100.7:51820" || lookups != 2 || triggers != 1 {
			t.Errorf("got %s after %d lookups and %d triggers", got[0].Endpoint, lookups, triggers)
		}
		if peers[0].Endpoint.IsValid() {
			t.Error("the argument was changed")
		}
	})
}

// TestInsideAddressIsLookedUpAgain: a name had an address that belongs to the cluster, and gets another one.
func TestInsideAddressIsLookedUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lookups, triggers := 0, 0
		peers := named("vpn.example.org:51820")
		saved := named("vpn.example.org:51820")
		saved[0].Endpoint = netip.MustParseAddrPort("10.244.1.7:51820")
		r := newEndpointResolver(saved, slog.New(slog.DiscardHandler), func() { triggers++ })
		r.lookup = func(context.Context, string) (config.Endpoint, error) {
			if lookups++; lookups <= 2 {
				return config.Endpoint{AddrPort: saved[0].Endpoint}, nil
			}
			return config.Endpoint{AddrPort: netip.MustParseAddrPort("198.51.100.7:51820")}, nil
		}
		inside := r.resolve(t.Context(), peers)
		for range 4 {
			r.retry(t.Context(), inside)
			time.Sleep(resolveRetryPeriod)
			synctest.Wait()
		}
		if got := r.resolve(t.Context(), peers); got[0].Endpoint.String() != "198.51.100.7:51820" || lookups < 3 || triggers != 1 {
			t.Errorf("got %s after %d lookups and %d triggers", got[0].Endpoint, lookups, triggers)
		}
		r.retry(t.Context(), nil)
		before := lookups
		time.Sleep(2 * resolveRetryPeriod)
		synctest.Wait()
		if lookups != before {
			t.Errorf("%d more lookups of an address outside", lookups-before)
		}
		r.stop()
	})
}

func TestUnusableEndpointAddressIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r := newEndpointResolver(nil, slog.New(slog.NewTextHandler(&out, nil)), func() { t.Error("triggered") })
		r.lookup = func(context.Context, string) (config.Endpoint, error) {
			return config.Endpoint{AddrPort: netip.MustParseAddrPort("127.0.0.1:51820")}, nil
		}
		r.resolve(t.Context(), named("vpn.example.org:51820"))
		synctest.Wait()
		r.stop()
		for _, want := range []string{"peer=gateway", "endpoint_name=vpn.example.org:51820", "127.0.0.1, which is not"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("got %s, want %s", &out, want)
			}
		}
	})
}

func TestUnneededLookupsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newEndpointResolver(nil, slog.New(slog.DiscardHandler), func() { t.Error("triggered") })
		r.lookup = func(ctx context.Context, _ string) (config.Endpoint, error) {
			<-ctx.Done()
			return config.Endpoint{AddrPort: netip.MustParseAddrPort("198.51.100.7:51820")}, nil
		}
		r.resolve(t.Context(), named("one.example.org:1"))
		r.resolve(t.Context(), named("two.example.org:1"))
		unselected := named("two.example.org:1")
		unselected[0].Selected = false
		r.resolve(t.Context(), unselected)
		synctest.Wait()
		if len(r.running) != 0 {
			t.Errorf("%d lookups run", len(r.running))
		}
		r.resolve(t.Context(), named("two.example.org:1"))
		r.stop()
	})
}

func TestSavedEndpointNeedsNoLookup(t *testing.T) {
	saved := named("vpn.example.org:1")
	saved[0].Endpoint = netip.MustParseAddrPort("198.51.100.7:1")
	r := newEndpointResolver(saved, slog.New(slog.DiscardHandler), func() {})
	r.lookup = func(context.Context, string) (config.Endpoint, error) {
		t.Error("looked up")
		return config.Endpoint{}, nil
	}
	if got := r.resolve(t.Context(), named("vpn.example.org:1")); got[0].Endpoint != saved[0].Endpoint {
		t.Errorf("got %s", got[0].Endpoint)
	}
}

func TestUnusableAddressIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newEndpointResolver(nil, slog.New(slog.DiscardHandler), func() { t.Error("triggered") })
		r.lookup = func(context.Context, string) (config.Endpoint, error) {
			return config.Endpoint{AddrPort: netip.MustParseAddrPort("127.0.0.1:51820")}, nil
		}
		r.resolve(t.Context(), named("localhost:51820"))
		synctest.Wait()
		if got := r.resolve(t.Context(), named("localhost:51820")); got[0].Endpoint.IsValid() {
			t.Errorf("got %s", got[0].Endpoint)
		}
		r.stop()
	})
}
