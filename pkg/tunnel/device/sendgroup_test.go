// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest"
)

// groupPort records the send groups that are opened.
type groupPort struct {
	underlay.Port
	opened *[]int
	err    error
}

func (p groupPort) OpenGroup(group int) error {
	*p.opened = append(*p.opened, group)
	return p.err
}

// groupRig is a device that was not started, with peers and a port that opens send groups with err.
type groupRig struct {
	*devicetest.Host
	peers  []*device.Peer
	opened []int
}

func newGroupRig(t *testing.T, peers int, err error) *groupRig {
	t.Helper()
	r := &groupRig{}
	r.Host = devicetest.NewLAN(nil).Host(t, 1, devicetest.Options{
		Stop: true, Log: slog.New(slog.DiscardHandler),
		WrapPort: func(p underlay.Port) underlay.Port { return groupPort{p, &r.opened, err} },
	})
	for i := range peers {
		key := noise.PublicKey{byte(i + 1)}
		r.Apply(config.Device{Peers: []config.Peer{{PublicKey: key}}})
		r.peers = append(r.peers, r.PeerOf(key))
	}
	r.setUp(true)
	return r
}

func (r *groupRig) setUp(up bool) {
	r.Follow(tun.Event{Up: up, MTU: 1420})
	r.Step()
}

// wait reports that data to each peer waits, and returns the peers' groups then.
func (r *groupRig) wait() (groups []int) {
	for _, p := range r.peers {
		p.SendBufferFull()
		r.Step()
		groups = append(groups, p.SendGroup())
	}
	return groups
}

func TestWaitingPeersTakeSendGroupsInTurn(t *testing.T) {
	r := newGroupRig(t, 10, nil)
	defer r.Shut()
	want := []int{0, 1, 2, 3, 4, 5, 6, 7, 1, 2}
	for range 2 { // it matters once
		if got := r.wait(); !slices.Equal(got, want) {
			t.Errorf("the peers have groups %v, want %v", got, want)
		}
	}
	if want := want[1:]; !slices.Equal(r.opened, want) {
		t.Errorf("groups %v were opened, want %v", r.opened, want)
	}
}

func TestPeerStaysInFirstGroupIfNoneOpens(t *testing.T) {
	r := newGroupRig(t, 2, errors.New("no descriptors"))
	defer r.Shut()
	if got, want := r.wait(), []int{0, 0}; !slices.Equal(got, want) {
		t.Errorf("the peers have groups %v, want %v", got, want)
	}
}

// TestNewPortBeginsSendGroupsAnew also reports a full send buffer while there is no port, as a lane does that has just used the former one.
func TestNewPortBeginsSendGroupsAnew(t *testing.T) {
	other := uint16(devicetest.ListenPort + 1)
	for name, change := range map[string]func(*groupRig){
		"down and up": func(r *groupRig) {
			r.setUp(false)
			r.wait()
			r.setUp(true)
		},
		"while the port is replaced": func(r *groupRig) {
			r.BetweenPorts(groupPort{opened: &r.opened}, func() { r.wait() })
		},
		"down and up at once": func(r *groupRig) {
			r.Follow(tun.Event{Up: false, MTU: 1420})
			for _, p := range r.peers {
				p.SendBufferFull()
			}
			r.setUp(true)
		},
		"another port": func(r *groupRig) { r.Apply(config.Device{ListenPort: &other}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newGroupRig(t, 3, nil)
			defer r.Shut()
			r.wait()
			change(r)
			for i, p := range r.peers {
				if group := p.SendGroup(); group != 0 {
					t.Errorf("peer %d has group %d, which the port has not opened", i, group)
				}
			}
			if got := r.wait(); !slices.Equal(got, []int{0, 1, 2}) {
				t.Errorf("the peers have groups %v, want 0, 1 and 2", got)
			}
		})
	}
}
