// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// externalPeers follows the RopewalkPeers, from the first reconcile in mesh mode on.
type externalPeers struct {
	*optionalInformer
	started bool
	trigger func() // requests a reconcile
}

// newExternalPeers returns a follower that calls changed after each change.
func newExternalPeers(c *client, log *slog.Logger, changed func()) (*externalPeers, error) {
	o, err := newOwnInformer(c, v1alpha1.PeerResource, &v1alpha1.RopewalkPeer{}, log, changed)
	return &externalPeers{optionalInformer: o, trigger: changed}, err
}

// follow starts the informer, unless it runs. A reconcile is requested once it has synced, if there are any RopewalkPeers or were any.
func (e *externalPeers) follow(ctx context.Context, wereAny bool) {
	if e.started {
		return
	}
	e.started = true
	go e.RunWithContext(ctx)
	go func() {
		select {
		case <-e.HasSyncedChecker().Done():
			if wereAny || len(e.GetStore().ListKeys()) > 0 {
				e.trigger()
			}
		case <-ctx.Done():
		}
	}()
}

// objects returns the RopewalkPeers by name, but none that is being deleted.
func (e *externalPeers) objects() (all []*v1alpha1.RopewalkPeer) {
	for _, o := range e.GetStore().List() {
		if rp, ok := o.(*v1alpha1.RopewalkPeer); ok && rp.DeletionTimestamp.IsZero() {
			all = append(all, rp)
		}
	}
	slices.SortFunc(all, func(a, b *v1alpha1.RopewalkPeer) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// of returns the external peers as the node n sees them. It returns false while they are unknown.
func (e *externalPeers) of(n *node) (all []mesh.ExternalPeer, known bool) {
	if !e.HasSynced() {
		return nil, false
	}
	for _, rp := range e.objects() {
		p := toExternal(rp)
		if selector, err := rp.Spec.NodeSelector.Selector(); err == nil {
			p.Selected = selector.Matches(labels.Set(n.Labels))
		} else if p.Invalid == "" {
			p.Invalid = "nodeSelector: " + err.Error()
		}
		all = append(all, p)
	}
	return all, true
}

// toExternal converts the API's object. The API server has validated it, but maybe with another version of the CRD: whatever does not
// parse is in Invalid.
func toExternal(rp *v1alpha1.RopewalkPeer) mesh.ExternalPeer {
	p := mesh.ExternalPeer{Name: rp.Name, Created: rp.CreationTimestamp.Time}
	spec := &rp.Spec
	var err error
	if p.Key, err = noise.ParseBase64[noise.PublicKey](string(spec.PublicKey)); err != nil || p.Key.IsZero() {
		p.Invalid = "publicKey is no WireGuard key"
		return p
	}
	if len(spec.AllowedIPs) > mesh.MaxExternalAllowedIPs {
		p.Invalid = fmt.Sprintf("allowedIPs has %d prefixes: %d are allowed", len(spec.AllowedIPs), mesh.MaxExternalAllowedIPs)
		return p
	}
	for _, text := range spec.AllowedIPs {
		a, err := netip.ParsePrefix(string(text))
		if err != nil {
			p.Invalid = fmt.Sprintf("the allowed IP %.50q is no prefix", text)
			return p
		}
		p.AllowedIPs = append(p.AllowedIPs, a)
	}
	if spec.PersistentKeepalive < 0 || spec.PersistentKeepalive > 65535 {
		p.Invalid = "persistentKeepalive is not between 0 and 65535"
		return p
	}
	p.Keepalive = uint16(spec.PersistentKeepalive)
	p.PostQuantum, err = parsePostQuantum(spec.PostQuantum)
	if err == nil && spec.Endpoint != "" {
		p.Endpoint, p.EndpointName, err = parseExternalEndpoint(string(spec.Endpoint))
	}
	if err != nil {
		p.Invalid = err.Error()
	}
	return p
}

// parseExternalEndpoint returns an endpoint, or the host name and port that it is to be resolved from.
func parseExternalEndpoint(text string) (at netip.AddrPort, name string, err error) {
	host, portText, err := net.SplitHostPort(text)
	port, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || portErr != nil || port == 0 {
		return at, "", fmt.Errorf("the endpoint %.50q has no port", text)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		usable := mesh.UsableAddrs([]netip.Addr{addr})
		if len(usable) == 0 {
			return at, "", fmt.Errorf("the endpoint %.50q is no global unicast address", text)
		}
		return netip.AddrPortFrom(usable[0], uint16(port)), "", nil
	}
	host = strings.ToLower(host)
	if len(validation.IsDNS1123Subdomain(host)) > 0 || strings.Trim(host, "0123456789.") == "" {
		return at, "", fmt.Errorf("the endpoint %.50q has neither an IP address nor a host name", text)
	}
	return at, net.JoinHostPort(host, strconv.FormatUint(port, 10)), nil
}
