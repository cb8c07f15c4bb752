// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/cluster/mesh"
	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
)

func TestSpreadingWaitsForPropagation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(endpoint string, first int32) *v1alpha1.AnnouncementSpec {
			return &v1alpha1.AnnouncementSpec{
				Mode: v1alpha1.ModeSpread, Endpoints: []v1alpha1.Endpoint{v1alpha1.Endpoint(endpoint)}, SpreadPorts: &v1alpha1.Ports{First: first, Last: 61999},
			}
		}
		here, moved, wider := at("192.0.2.1:51820", 61000), at("192.0.2.9:51820", 61000), at("192.0.2.9:51820", 60500)
		both, reordered := at("192.0.2.9:51820", 61000), at("[2001:db8::9]:51820", 61000)
		both.Endpoints, reordered.Endpoints = append(both.Endpoints, reordered.Endpoints[0]), append(reordered.Endpoints, both.Endpoints[0])
		tunnel := at("192.0.2.9:51820", 60500)
		tunnel.Mode = v1alpha1.ModeMesh
		nowhere := at("", 60500)
		nowhere.Endpoints = nil
		var n Propagation
		for i, step := range []struct {
			published, next *v1alpha1.AnnouncementSpec
			pass            time.Duration
			want            bool
		}{
			{here, here, 0, true}, // a restarted agent
			{here, moved, 0, false},
			{here, moved, time.Minute, false}, // not published yet
			{moved, moved, 0, false},
			{moved, moved, 9 * time.Second, false},
			{moved, moved, time.Second, true},
			{moved, wider, 0, false},
			{wider, wider, 0, false},
			{wider, wider, 10 * time.Second, true},
			{&v1alpha1.AnnouncementSpec{}, wider, 0, false},
			{wider, wider, 0, false},
			{wider, wider, 10 * time.Second, true},
			{tunnel, wider, 0, false}, // it was in another mode at the same port
			{both, both, 0, false},
			{both, both, 10 * time.Second, true},
			{both, reordered, 0, true},
			{nowhere, nowhere, 0, false},
			{nowhere, nowhere, 10 * time.Second, false},
		} {
			time.Sleep(step.pass) // fake clock
			got, wait := n.Done(step.published, step.next, 10*time.Second)
			if got != step.want || got && wait > 0 {
				t.Errorf("step %d: got known %t, wait %s, want %t, and no wait once known", i, got, wait, step.want)
			}
		}
	})
}

func TestEndpointsFitCRDLimit(t *testing.T) {
	n := mesh.Node{Addrs: []netip.Addr{netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("::ffff:192.0.2.1")}}
	for i := range 9 {
		n.Addrs = append(n.Addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + i)}))
	}
	if all := EndpointsOf(n, 51820); len(all) == 0 || len(all) > 8 || all[0] != "192.0.2.1:51820" {
		t.Errorf("got %q", all)
	}
}
