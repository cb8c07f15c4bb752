// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// example is a tunnel with one of everything.
func example() *State {
	state := &device.State{
		PrivateKey: device.Secret{1, 2, 3}, ListenPort: 51820, FwMark: 7, Settings: config.Settings{SpreadPorts: &spread.Ports{First: 61000, Last: 61999}},
		Peers: []device.PeerState{{
			PublicKey: noise.PublicKey{9}, PresharedKey: device.Secret{4, 5, 6}, Endpoint: netip.MustParseAddrPort("[2001:db8::1]:1"),
			Source: netip.MustParseAddr("2001:db8::2"), Keepalive: 25, AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
			LastHandshake: time.Unix(1, 2).UTC(), LastAccepted: device.Timestamp{7},
			LastSent: device.Timestamp{8}, LastAcceptedAt: 3, Hello: &device.HelloResult{Ropewalk: true, Plan: []uint16{61000}, Blocked: []uint16{61001}},
		}},
	}
	return &State{
		Name: "wg0", Queues: 2, Steered: true, KeepSocket: true, Lanes: 2, Holders: 1, Sources: []uint16{61000, 61001}, Plans: 1,
		Selection: &underlay.Selection{First: 1, Last: 2, Plans: []underlay.Plan{{From: netip.MustParseAddr("192.0.2.1"), Ports: []uint16{1}}}},
		Device:    state, AbsentLinks: map[string]int{"usb0": 7},
	}
}

func encoded(t testing.TB, s *State) []byte {
	t.Helper()
	b, err := s.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseReturnsTheEncodedState(t *testing.T) {
	want := example()
	got, err := parseState(encoded(t, want))
	if err != nil {
		t.Fatal(err)
	}
	diff := cmp.Diff(want, got, cmpopts.EquateEmpty(),
		cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}))
	if diff != "" {
		t.Error(diff)
	}
}

func TestStateOfAnotherVersionIsErrVersion(t *testing.T) {
	b := encoded(t, example())
	binary.BigEndian.PutUint32(b[len(magic):], Version+1)
	if _, err := parseState(b); !errors.Is(err, ErrVersion) {
		t.Error(err)
	}
}

func TestMalformedStateIsRefused(t *testing.T) {
	for name, corrupt := range map[string]func(*State){
		"no name":                 func(s *State) { s.Name = "" },
		"no queue":                func(s *State) { s.Queues, s.Lanes = 0, 0 },
		"queues and lanes":        func(s *State) { s.Lanes = 1 },
		"a holder of one lane":    func(s *State) { s.Queues, s.Lanes = 1, 1 },
		"two holders":             func(s *State) { s.Holders = 2 },
		"too many sources":        func(s *State) { s.Sources = make([]uint16, underlay.MaxSources+1) },
		"plans without selection": func(s *State) { s.Selection = nil },
		"a plan without address":  func(s *State) { s.Selection.Plans[0].From = netip.Addr{} },
		"a mapped endpoint": func(s *State) {
			s.Device.Peers[0].Endpoint = netip.MustParseAddrPort("[::ffff:192.0.2.1]:1")
		},
		"a bad hello":        func(s *State) { s.Device.Peers[0].Hello.Hello = []byte("hello") },
		"an unmasked prefix": func(s *State) { s.Device.Peers[0].AllowedIPs[0] = netip.MustParsePrefix("10.0.0.1/8") },
	} {
		s := example()
		corrupt(s)
		if _, err := parseState(encoded(t, s)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	whole := encoded(t, example())
	for _, b := range [][]byte{nil, whole[:headerSize], whole[:len(whole)-1], append(bytes.Clone(whole), ' ')} {
		if _, err := parseState(b); err == nil {
			t.Errorf("%d bytes: accepted", len(b))
		}
	}
}

func TestStateNeverPrintsSecrets(t *testing.T) {
	s := example()
	var err error
	if s.EncodedDevice, err = s.Device.Encode(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, to := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
		slog.New(to).Info("x", "handover", s, "tunnel", &Tunnel{State: *s}, "device", s.Device, "key", s.Device.PrivateKey, "psk", s.Device.Peers[0].PresharedKey)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d"} {
		fmt.Fprintf(&b, verb+verb+verb+verb, s, &Tunnel{State: *s}, s.Device, s.Device.PrivateKey)
	}
	for _, secret := range []string{"AQID", "010203", "1 2 3", "0x1, 0x2"} {
		if strings.Contains(b.String(), secret) {
			t.Errorf("%q is in %s", secret, b.String())
		}
	}
}

func FuzzParseState(f *testing.F) {
	f.Add(encoded(f, example()))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseState(b)
		if err == nil && (s.Device == nil || 1+s.Queues > maxDescriptors || 1+s.sockets() > maxDescriptors) {
			t.Errorf("%d queues, %d sockets, device %v", s.Queues, s.sockets(), s.Device)
		}
	})
}

func TestSealedFileIsReadOnly(t *testing.T) {
	want := bytes.Repeat([]byte("secret"), 1000)
	fd, err := newSealedFile(want)
	if err != nil {
		t.Skip("needs memfd_create: ", err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("not close-on-exec: got %#x, error %v, want no error", flags, err)
	}
	if _, err := unix.Pwrite(fd, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("writing a sealed file: got error %v, want %v", err, unix.EPERM)
	}
	got, err := readSealedFile(fd)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	open, err := unix.MemfdCreate("open", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readSealedFile(open); !errors.Is(err, errMalformed) {
		t.Errorf("a file without seals: got error %v, want %v", err, errMalformed)
	}
}
