// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/dataplane/engine"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// connPair returns both ends of a connection.
func connPair(t *testing.T) (a, b Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	one, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { one.Close(); other.Close() })
	return Conn{one.(*net.UnixConn)}, Conn{other.(*net.UnixConn)}
}

func TestDescriptorsArriveInOrder(t *testing.T) {
	for _, n := range []int{1, maxFDsPerMessage, maxFDsPerMessage + 1, 2*maxFDsPerMessage + 7} {
		a, b := connPair(t)
		var fds []int
		for range n {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				t.Skip("needs descriptors: ", err)
			}
			fds = append(fds, fd)
			var b [8]byte
			binary.NativeEndian.PutUint64(b[:], uint64(len(fds)))
			if _, err := unix.Write(fd, b[:]); err != nil {
				t.Fatal(err)
			}
		}
		sent := make(chan error, 1)
		go func() { sent <- a.sendFDs(fds) }()
		got, err := b.receiveFDs(time.Minute)
		if err := errors.Join(err, <-sent, closeAll(fds)); err != nil || len(got) != n {
			t.Fatalf("%d of %d: %v", len(got), n, err)
		}
		for i, fd := range got {
			var b [8]byte
			if _, err := unix.Read(fd, b[:]); err != nil || binary.NativeEndian.Uint64(b[:]) != uint64(i+1) {
				t.Fatalf("descriptor %d of %d is out of order: %v", i, n, err)
			}
		}
		if err := closeAll(got); err != nil {
			t.Error(err)
		}
	}
}

func TestInvalidOffersAreRefused(t *testing.T) {
	for offer, want := range map[string]error{
		magic + "\x00\x00\x00\x09": ErrVersion,
		"nonsense....":             errMalformed,
		"errno=-71\n\n":            unix.EPROTO,
		"errno=-16\n\n":            unix.EBUSY,
	} {
		a, b := connPair(t)
		if _, err := a.Write([]byte(offer)); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if err := b.readOffer(); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", offer, err, want)
		}
	}
	a, b := connPair(t)
	if err := errors.Join(a.Offer(), b.readOffer()); err != nil {
		t.Error(err)
	}
	a.Close()
	if err := b.Await(Ready, time.Minute); !IsClosed(err) {
		t.Errorf("after the end of the connection: %v", err)
	}
}

// TestRefusalIsReadFromOpenConnection has refusals shorter than an offer. The daemon does not close the connection after them.
func TestRefusalIsReadFromOpenConnection(t *testing.T) {
	for _, refusal := range []string{"errno=-1\n\n", "errno=-16\n\n", "errno=-95\n\n"} {
		a, b := connPair(t)
		if _, err := a.Write([]byte(refusal)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, offerSize)
		n, err := b.fillOffer(buf) // without a deadline
		if err != nil || n < len(refusal)-1 {
			t.Errorf("%q: got %q, error %v, want no error", refusal, buf[:n], err)
		}
	}
}

// TestSuccessorGetsRoundsThenTheTunnelThenCounters has two rounds of changes before the tunnel stops.
func TestSuccessorGetsRoundsThenTheTunnelThenCounters(t *testing.T) {
	a, b := connPair(t)
	control, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	state := func(port uint16) State {
		return State{Name: "wg0", Queues: 2, Device: &device.State{ListenPort: port}}
	}
	counters := &device.Counters{Stats: engine.Stats{Drops: map[string]uint64{"replay": 3}}, Peers: []device.PeerCounters{{Traffic: engine.PeerTraffic{RxBytes: 7}}}}
	sent := make(chan error, 1)
	go func() {
		one, two, stopped := state(1), state(2), Tunnel{State: state(3), ControlFD: control}
		sent <- errors.Join(a.Await(Take, time.Minute), a.SendChanges(&one), a.SendChanges(&two), a.SendTunnel(&stopped), a.SendCounters(counters), unix.Close(control))
	}()
	tunnel := &Tunnel{State: state(0)}
	var rounds []uint16
	err = b.RequestTunnel(t.Context(), tunnel, func(changes *device.State) error {
		rounds = append(rounds, changes.ListenPort)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(rounds, []uint16{1, 2}) || tunnel.Device.ListenPort != 3 {
		t.Errorf("got rounds %d, then %d, want 1 and 2, then 3", rounds, tunnel.Device.ListenPort)
	}
	if err := b.Send(Ready); err != nil {
		t.Fatal(err)
	}
	got, err := b.ReceiveCounters(t.Context(), 1)
	if err := errors.Join(err, <-sent, unix.Close(tunnel.ControlFD)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(counters, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

// TestSocketsKeepTheirRoles numbers descriptors in the order in which SendTunnel sends them.
func TestSocketsKeepTheirRoles(t *testing.T) {
	for _, holder := range [][]int{nil, {12}} {
		want := udp.Sockets{Lanes: []int{10, 11}, Holder: holder, Sources: []udp.Source{{Port: 61000, FD: 13}, {Port: 61001, FD: 14}}}
		tunnel, fds := Tunnel{State: State{Queues: 2, Lanes: 2, Holders: len(holder), Sources: []uint16{61000, 61001}}}, []int{9}
		for fd := range want.FDs {
			fds = append(fds, fd)
		}
		if n := tunnel.sockets(); n != len(fds) {
			t.Fatalf("a successor expects %d descriptors, got %d", n, len(fds))
		}
		tunnel.assignSockets(fds)
		if diff := cmp.Diff(want, tunnel.Sockets, cmpopts.EquateEmpty(), cmpopts.IgnoreFields(want, "Selection")); diff != "" || tunnel.ControlFD != 9 {
			t.Errorf("control socket %d, -want +got:\n%s", tunnel.ControlFD, diff)
		}
	}
}

// TestFailedUpdateEndsRequestTunnel: a successor without a change must not take the tunnel.
func TestFailedUpdateEndsRequestTunnel(t *testing.T) {
	a, b := connPair(t)
	sent := make(chan error, 1)
	go func() {
		err := a.Await(Take, time.Minute)
		if err == nil {
			err = a.SendChanges(&State{Name: "wg0", Queues: 2, Device: &device.State{}})
		}
		sent <- err
	}()
	err := b.RequestTunnel(t.Context(), &Tunnel{State: State{Queues: 2}}, func(*device.State) error { return errMalformed })
	if !errors.Is(err, errMalformed) {
		t.Errorf("got error %v, want %v", err, errMalformed)
	}
	b.Close()
	if err := <-sent; !IsClosed(err) {
		t.Errorf("the predecessor: got error %v, want the end of the connection", err)
	}
}

// TestCanceledContextEndsReceiveCounters: a successor that ends does not wait for a predecessor that hangs.
func TestCanceledContextEndsReceiveCounters(t *testing.T) {
	_, b := connPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.ReceiveCounters(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

func TestCanceledContextEndsRequestCommit(t *testing.T) {
	_, b := connPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.RequestCommit(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want %v", err, context.Canceled)
	}
}

// TestExpiredDeadlinesDoNotEndTheCommit: a process that was suspended for longer than its last deadline must not leave the tunnel to nobody.
func TestExpiredDeadlinesDoNotEndTheCommit(t *testing.T) {
	a, b := connPair(t)
	if err := errors.Join(a.SetDeadline(time.Unix(1, 0)), b.SetDeadline(time.Unix(1, 0)), a.Send(Commit), b.RequestCommit(t.Context())); err != nil {
		t.Error(err)
	}
}

func TestCanceledContextEndsRequestSnapshot(t *testing.T) {
	_, b := connPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.RequestSnapshot(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
