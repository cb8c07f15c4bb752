// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/device"
	"github.com/ropewalk/ropewalk/pkg/engine"
	"github.com/ropewalk/ropewalk/pkg/noise"
	"github.com/ropewalk/ropewalk/pkg/spread"
	"github.com/ropewalk/ropewalk/pkg/underlay"
)

// example is a tunnel with one of everything.
func example() *handoff {
	state := &device.State{
		PrivateKey: device.Secret{1, 2, 3}, ListenPort: 51820, FwMark: 7, SpreadPorts: spread.DefaultPorts,
		Peers: []device.PeerState{{
			PublicKey: noise.PublicKey{9}, PresharedKey: device.Secret{4, 5, 6}, Endpoint: netip.MustParseAddrPort("[2001:db8::1]:1"),
			Source: netip.MustParseAddr("2001:db8::2"), Keepalive: 25, AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			LastHandshake: time.Unix(1, 2).UTC(), Traffic: engine.PeerTraffic{RxBytes: 1, TxBytes: 2}, Greatest: device.Timestamp{7},
			Initiated: device.Timestamp{8}, LastConsumed: 3, Session: &device.SessionState{Ropewalk: true, Plan: []uint16{61000}},
		}},
		Stats: engine.Stats{Drops: map[string]uint64{"tx_no_peer": 1}},
	}
	return &handoff{
		Name: "wg0", Queues: 2, Steered: true, Lanes: 2, Sources: []uint16{61000, 61001}, Plans: 1,
		Selection: &underlay.Selection{First: 1, Last: 2, Plans: []underlay.Plan{{From: netip.MustParseAddr("192.0.2.1"), Ports: []uint16{1}}}},
		state:     state,
	}
}

func encoded(t testing.TB, h *handoff) []byte {
	t.Helper()
	text, err := h.state.Encode()
	if err != nil {
		t.Fatal(err)
	}
	h.Device = text
	b, err := h.encode()
	if err != nil {
		t.Fatal(err)
	}
	h.Device = nil
	return b
}

func TestWhatIsHandedOverArrivesAsItWas(t *testing.T) {
	want := example()
	got, err := parseHandoff(encoded(t, want))
	if err != nil {
		t.Fatal(err)
	}
	diff := cmp.Diff(want, got, cmp.AllowUnexported(handoff{}), cmpopts.EquateEmpty(),
		cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}))
	if diff != "" {
		t.Error(diff)
	}
}

func TestAnotherVersionIsRefusedClearly(t *testing.T) {
	b := encoded(t, example())
	binary.BigEndian.PutUint32(b[len(handoffMagic):], Version+1)
	if _, err := parseHandoff(b); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
}

func TestWhatMakesNoSenseIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*handoff){
		"no name":            func(h *handoff) { h.Name = "" },
		"no queue":           func(h *handoff) { h.Queues, h.Lanes = 0, 0 },
		"queues and lanes":   func(h *handoff) { h.Lanes = 1 },
		"too many sources":   func(h *handoff) { h.Sources = make([]uint16, underlay.MaxSources+1) },
		"plans of nothing":   func(h *handoff) { h.Selection = nil },
		"a plan for nobody":  func(h *handoff) { h.Selection.Plans[0].From = netip.Addr{} },
		"a peer without key": func(h *handoff) { h.state.Peers[0].PublicKey = noise.PublicKey{} },
		"a mapped endpoint": func(h *handoff) {
			h.state.Peers[0].Endpoint = netip.MustParseAddrPort("[::ffff:192.0.2.1]:1")
		},
		"a bad hello":     func(h *handoff) { h.state.Peers[0].Session.Hello = []byte("hello") },
		"a crooked route": func(h *handoff) { h.state.Peers[0].AllowedIPs[0] = netip.MustParsePrefix("10.0.0.1/8") },
	} {
		h := example()
		spoil(h)
		if _, err := parseHandoff(encoded(t, h)); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	whole := encoded(t, example())
	for _, b := range [][]byte{nil, whole[:handoffHeader], whole[:len(whole)-1], append(bytes.Clone(whole), ' ')} {
		if _, err := parseHandoff(b); err == nil {
			t.Errorf("%d bytes: taken", len(b))
		}
	}
}

func TestNothingThatIsHandedOverCanBePrinted(t *testing.T) {
	h := example()
	var err error
	if h.Device, err = h.state.Encode(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, to := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
		slog.New(to).Info("x", "handoff", h, "state", h.state, "key", h.state.PrivateKey, "psk", h.state.Peers[0].PresharedKey)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		fmt.Fprintf(&b, verb+verb+verb, h, h.state, h.state.PrivateKey)
	}
	for _, secret := range []string{"AQID", "010203", "1 2 3", "0x1, 0x2"} {
		if strings.Contains(b.String(), secret) {
			t.Errorf("%q is in %s", secret, b.String())
		}
	}
}

func FuzzParseHandoff(f *testing.F) {
	f.Add(encoded(f, example()))
	f.Add([]byte(handoffMagic))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHandoff(b)
		if err == nil && (h.state == nil || h.descriptors() > maxDescriptors) {
			t.Errorf("%d descriptors, state %v", h.descriptors(), h.state)
		}
	})
}

func TestStateIsReadOnlyOnceItIsSealed(t *testing.T) {
	want := bytes.Repeat([]byte("secret"), 1000)
	fd, err := seal(want)
	if err != nil {
		t.Skip("needs memfd_create: ", err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("children inherit it: %#x, %v", flags, err)
	}
	if _, err := unix.Pwrite(fd, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("it can be written: %v", err)
	}
	got, err := unseal(fd)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	open, err := unix.MemfdCreate("open", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unseal(open); !errors.Is(err, errHandoff) {
		t.Errorf("a file that anybody can write: %v", err)
	}
}

// links are both ends of a connection.
func links(t *testing.T) (a, b link) {
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
	return link{one.(*net.UnixConn)}, link{other.(*net.UnixConn)}
}

func TestDescriptorsArriveInTheirOrder(t *testing.T) {
	for _, n := range []int{1, perMessage, perMessage + 1, 2*perMessage + 7} {
		a, b := links(t)
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
		go func() { sent <- a.send(fds) }()
		got, err := b.receive()
		if err := errors.Join(err, <-sent, closeAll(fds)); err != nil || len(got) != n {
			t.Fatalf("%d of %d: %v", len(got), n, err)
		}
		for i, fd := range got {
			var b [8]byte
			if _, err := unix.Read(fd, b[:]); err != nil || binary.NativeEndian.Uint64(b[:]) != uint64(i+1) {
				t.Fatalf("descriptor %d of %d is another one: %v", i, n, err)
			}
		}
		if err := closeAll(got); err != nil {
			t.Error(err)
		}
	}
}

func TestAnOfferOfAnotherVersionOrNoneIsRefused(t *testing.T) {
	for said, want := range map[string]error{
		handoffMagic + "\x00\x00\x00\x09": ErrVersion,
		"nonsense....":                    errHandoff,
		"errno=-71\n\n":                   unix.EPROTO,
		"errno=-16\n\n":                   unix.EBUSY,
	} {
		a, b := links(t)
		if _, err := a.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if err := b.hearOffer(); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", said, err, want)
		}
	}
	a, b := links(t)
	if err := errors.Join(a.offer(), b.hearOffer()); err != nil {
		t.Error(err)
	}
	a.Close()
	if err := b.hear(sayReady, time.Minute); !isEnd(err) {
		t.Errorf("the end of the connection: %v", err)
	}
}

// TestARefusalIsHeardWhileTheConnectionStaysOpen: some are shorter than an offer, and a daemon waits for the next operation after them.
func TestARefusalIsHeardWhileTheConnectionStaysOpen(t *testing.T) {
	for _, said := range []string{"errno=-1\n\n", "errno=-16\n\n", "errno=-95\n\n"} {
		a, b := links(t)
		if _, err := a.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, offerSize)
		n, err := b.readOffer(buf) // without a deadline
		if err != nil || n < len(said)-1 {
			t.Errorf("%q: %q, %v", said, buf[:n], err)
		}
	}
}

func TestTheEndOfTheNewDaemonEndsItsWaiting(t *testing.T) {
	_, b := links(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := awaitTunnel(ctx, b); !errors.Is(err, context.Canceled) || !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestNothingToTakeOverIsRefusedBeforeAnythingIsTouched(t *testing.T) {
	_, err := TakeOver(t.Context(), Options{Name: "rwnobody", Log: slog.New(slog.DiscardHandler)})
	if !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
