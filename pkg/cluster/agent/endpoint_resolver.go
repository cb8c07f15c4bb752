// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/control/conffile"
)

// endpointResolver finds the first address of external peers whose endpoint is a host name, and another one if this node cannot use it. From
// then on the device resolves the name again, when handshakes fail. One goroutine calls its methods; mu guards against the goroutines of lookups.
type endpointResolver struct {
	lookup  conffile.Resolver // host:port
	trigger func()            // called after a name was resolved
	log     *slog.Logger
	lookups sync.WaitGroup

	mu      sync.Mutex
	known   map[string]netip.AddrPort     // by host:port
	running map[string]context.CancelFunc // likewise
}

// resolveRetryPeriod is the time between two lookups of a name without a usable address. lookup itself retries while no name server
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
			r.start(ctx, p, 0)
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

// retry looks the names of peers up, and no others again, until they have other addresses: those belong to the cluster or to another peer.
func (r *endpointResolver) retry(ctx context.Context, inside []mesh.ExternalPeer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, cancel := range r.running {
		if r.known[name].IsValid() && !slices.ContainsFunc(inside, func(p mesh.ExternalPeer) bool { return p.EndpointName == name }) {
			cancel()
			delete(r.running, name)
		}
	}
	for i := range inside {
		r.start(ctx, &inside[i], resolveRetryPeriod)
	}
}

// start starts a goroutine that looks up the endpoint name of a peer after a pause, unless one runs.
func (r *endpointResolver) start(ctx context.Context, p *mesh.ExternalPeer, pause time.Duration) {
	name, peer := p.EndpointName, p.Name
	if r.running[name] != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	r.running[name] = cancel
	r.lookups.Go(func() {
		for ; ; pause = resolveRetryPeriod {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pause):
			}
			at, err := r.lookupUsable(ctx, name)
			if err == nil && r.store(ctx, name, at) || ctx.Err() != nil {
				return
			}
			if err != nil {
				r.log.Warn("resolving the endpoint name of a RopewalkPeer failed, keeping its last address if there is one, retrying", "peer", peer, "endpoint_name", name, "after", resolveRetryPeriod, "error", err)
			}
		}
	})
}

// lookupUsable returns the address of a name, or an error if a peer cannot have it.
func (r *endpointResolver) lookupUsable(ctx context.Context, name string) (netip.AddrPort, error) {
	at, err := r.lookup(ctx, name)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addr := at.AddrPort.Addr()
	usable := mesh.UsableAddrs([]netip.Addr{addr})
	if len(usable) == 0 {
		return netip.AddrPort{}, fmt.Errorf("the name has the address %s, which is not a global unicast address", addr)
	}
	return netip.AddrPortFrom(usable[0], at.AddrPort.Port()), nil
}

// store records the address of a name, and requests a reconcile. It returns false for the address that is known, and once ctx has ended.
func (r *endpointResolver) store(ctx context.Context, name string, at netip.AddrPort) bool {
	r.mu.Lock()
	changed := ctx.Err() == nil && r.known[name] != at
	if changed {
		r.known[name] = at
		r.running[name]()
		delete(r.running, name)
	}
	r.mu.Unlock()
	if changed {
		r.trigger()
	}
	return changed
}

// stop ends all lookups and waits for them. Lookups that are needed later begin anew.
func (r *endpointResolver) stop() {
	r.mu.Lock()
	for name, cancel := range r.running {
		cancel()
		delete(r.running, name)
	}
	r.mu.Unlock()
	r.lookups.Wait()
}
