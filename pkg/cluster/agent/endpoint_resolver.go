// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/control/conffile"
)

// endpointResolver finds the first address of external peers whose endpoint is a host name. From then on the device resolves the name
// again, when handshakes fail. Its methods are not safe for concurrent use.
type endpointResolver struct {
	lookup  conffile.Resolver // host:port
	trigger func()            // called after a name was resolved
	log     *slog.Logger

	mu    sync.Mutex
	known map[string]netip.AddrPort // by host:port

	running map[string]context.CancelFunc
	lookups sync.WaitGroup
}

// resolveRetryPeriod is the time between two lookups of a name that has no address. The resolver itself retries when no name server
// answers.
const resolveRetryPeriod = time.Minute

// newEndpointResolver returns a resolver that knows the endpoints of an earlier agent.
func newEndpointResolver(saved []mesh.ExternalPeer, log *slog.Logger, trigger func()) *endpointResolver {
	r := &endpointResolver{
		lookup: conffile.NewResolver(conffile.ResolverConfig{Retries: conffile.Forever}), trigger: trigger, log: log,
		known: map[string]netip.AddrPort{}, running: map[string]context.CancelFunc{},
	}
	for _, p := range saved {
		if p.EndpointName != "" && p.Endpoint.IsValid() {
			r.known[p.EndpointName] = p.Endpoint
		}
	}
	return r
}

// resolve returns the peers with the endpoints that are known. It begins to look up the others, until ctx ends, and ends lookups that no
// peer needs.
func (r *endpointResolver) resolve(ctx context.Context, peers []mesh.ExternalPeer) []mesh.ExternalPeer {
	peers = slices.Clone(peers)
	wanted := map[string]bool{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range peers {
		p := &peers[i]
		if p.EndpointName == "" || !p.Selected || p.Invalid != "" {
			continue
		}
		wanted[p.EndpointName] = true
		if p.Endpoint = r.known[p.EndpointName]; !p.Endpoint.IsValid() {
			r.start(ctx, p.EndpointName)
		}
	}
	for name, cancel := range r.running {
		if !wanted[name] {
			cancel()
			delete(r.running, name)
		}
	}
	for name := range r.known {
		if !wanted[name] {
			delete(r.known, name)
		}
	}
	return peers
}

// start starts a goroutine that looks a name up, unless one runs.
func (r *endpointResolver) start(ctx context.Context, name string) {
	if r.running[name] != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	r.running[name] = cancel
	r.lookups.Go(func() {
		for {
			at, err := r.lookup(ctx, name)
			if ctx.Err() != nil {
				return
			}
			if usable := mesh.UsableAddrs([]netip.Addr{at.AddrPort.Addr()}); err == nil && len(usable) > 0 {
				r.store(ctx, name, netip.AddrPortFrom(usable[0], at.AddrPort.Port()))
				return
			}
			r.log.Warn("resolving the endpoint of a RopewalkPeer failed, retrying", "endpoint_name", name, "after", resolveRetryPeriod, "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(resolveRetryPeriod):
			}
		}
	})
}

// store records the address of a name, unless its lookup was canceled, and requests a reconcile.
func (r *endpointResolver) store(ctx context.Context, name string, at netip.AddrPort) {
	r.mu.Lock()
	wanted := ctx.Err() == nil
	if wanted {
		r.known[name] = at
		r.running[name]()
		delete(r.running, name)
	}
	r.mu.Unlock()
	if wanted {
		r.trigger()
	}
}

// stop ends all lookups and waits for them. Those that are needed later begin anew.
func (r *endpointResolver) stop() {
	r.mu.Lock()
	for name, cancel := range r.running {
		cancel()
		delete(r.running, name)
	}
	r.mu.Unlock()
	r.lookups.Wait()
}
