// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// apiEndpoints follows the API server's addresses: the EndpointSlice that the API servers write for the Service kubernetes. It runs only if
// traffic between nodes is encrypted.
type apiEndpoints struct {
	*optionalInformer
	started bool
}

// endpointSlice has the fields of an EndpointSlice (discovery.k8s.io/v1) that the agent reads.
type endpointSlice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Endpoints []struct {
		Addresses []string `json:"addresses"`
	} `json:"endpoints"`
	Ports []struct {
		Port int32 `json:"port"`
	} `json:"ports"`
}

// DeepCopyObject implements runtime.Object.
func (s *endpointSlice) DeepCopyObject() runtime.Object {
	c := *s
	s.DeepCopyInto(&c.ObjectMeta)
	c.Endpoints, c.Ports = slices.Clone(s.Endpoints), slices.Clone(s.Ports)
	for i := range c.Endpoints {
		c.Endpoints[i].Addresses = slices.Clone(s.Endpoints[i].Addresses)
	}
	return &c
}

// apiService is the name of the Service of the API server, and of its EndpointSlice (kubernetes/pkg/controlplane/reconcilers).
const apiService = "kubernetes"

// newAPIEndpoints returns a follower that calls changed after each change.
func newAPIEndpoints(cfg *rest.Config, log *slog.Logger, changed func()) (*apiEndpoints, error) {
	c, err := openForeign[endpointSlice](cfg, schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"})
	if err != nil {
		return nil, err
	}
	const resource = "endpointslices"
	list := cache.NewListWatchFromClient(c, resource, metav1.NamespaceDefault, fields.OneTermEqualSelector("metadata.name", apiService))
	o, err := newOptionalInformer(list, resource, &endpointSlice{}, log, changed)
	return &apiEndpoints{optionalInformer: o}, err
}

// follow starts the informer, unless it runs.
func (e *apiEndpoints) follow(ctx context.Context) {
	if !e.started {
		e.started = true
		go e.RunWithContext(ctx)
	}
}

// maxAPIEndpoints bounds the addresses and ports that are taken from the EndpointSlice. Each is exempt from the encryption by eight rules.
const maxAPIEndpoints = 32

// with returns the API server's addresses and ports, sorted. It takes the EndpointSlice's within
// the prefixes of nodes, or all without prefixes, and adds the addresses at which the server was
// reached. It returns none while the EndpointSlice is unknown. Addresses outside the prefixes
// need no exemption, since none is routed into the tunnel, and a changed EndpointSlice must not
// exempt more, such as pods. dropped is how many were left out beyond maxAPIEndpoints.
func (e *apiEndpoints) with(reached []netip.AddrPort, within []netip.Prefix) (all []netip.AddrPort, dropped int) {
	all = e.all()
	if len(all) == 0 {
		return nil, 0
	}
	all = slices.DeleteFunc(all, func(at netip.AddrPort) bool {
		return len(within) > 0 && !slices.ContainsFunc(within, func(p netip.Prefix) bool { return p.Contains(at.Addr()) })
	})
	slices.SortFunc(all, netip.AddrPort.Compare)
	all = slices.Compact(all)
	dropped = max(len(all)-maxAPIEndpoints, 0)
	all = append(all[:len(all)-dropped], reached...)
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all), dropped
}

func (e *apiEndpoints) all() (all []netip.AddrPort) {
	for _, o := range e.GetStore().List() {
		s, ok := o.(*endpointSlice)
		if !ok {
			continue
		}
		for _, endpoint := range s.Endpoints {
			for _, text := range endpoint.Addresses {
				addr, err := netip.ParseAddr(text)
				for _, p := range s.Ports {
					if err == nil && p.Port > 0 && p.Port <= 65535 {
						all = append(all, netip.AddrPortFrom(addr.Unmap().WithZone(""), uint16(p.Port)))
					}
				}
			}
		}
	}
	return all
}
