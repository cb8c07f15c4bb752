// SPDX-License-Identifier: Apache-2.0

package spreader

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

func TestDeviceHasItsActiveFlows(t *testing.T) {
	r := newRig(t)
	flowsOf := func() (f *DeviceFlows) {
		r.here.do(func() (err error) {
			f, err = r.here.host.Flows(t.Context(), r.here.device)
			return err
		})
		return f
	}
	if f := flowsOf(); f != nil {
		t.Errorf("nothing is attached: got %+v, want nil", f)
	}
	cfg := r.here.config()
	cfg.Gap = time.Minute
	r.here.attach(cfg)
	senders, receiver := r.senders(), r.there.socket(port)
	if f := flowsOf(); f == nil || len(f.Flows) != 0 || len(f.Tunnels) != 1 {
		t.Fatalf("before traffic: got %+v, want no flows", f)
	}
	r.prove(senders[:2], receiver)
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(thereAddr, port))
	for flow, c := range senders[:2] {
		_, err := c.WriteToUDP(message(flow, 1), to)
		expect.NoError(t, err)
		r.receive(receiver)
	}
	f := flowsOf()
	if len(f.Flows) != 2 || f.Flows[0].Hash == f.Flows[1].Hash || f.Flows[0].Lane == f.Flows[1].Lane {
		t.Errorf("got %+v, want 2 flows on 2 lanes", f.Flows)
	}
	counting := wg(netip.AddrPortFrom(thereAddr, port).String())
	counting.Peers[0].ReceivedBytes, counting.Peers[0].SentBytes = 5, 7
	r.here.finder.set(counting)
	if p := flowsOf().Tunnels[0].Peers[0]; p.PublicKey != counting.Peers[0].Key || p.ReceivedBytes != 5 || p.SentBytes != 7 {
		t.Errorf("got %+v, want what the tunnel counts", p)
	}
	counting.Peers[0].Secrets = ProbeSecrets{}
	counting.Peers = append(counting.Peers, counting.Peers[0])
	r.here.finder.set(counting)
	if p := flowsOf().Tunnels[0].Peers[0]; p.PublicKey != "" || p.ReceivedBytes != 0 {
		t.Errorf("two peers share the address: got %+v, want neither's counters", p)
	}
	if f.Tunnels[0].Interface != nil {
		t.Errorf("a tunnel that is not the kernel's: got %+v, want nil", f.Tunnels[0].Interface)
	}
}
