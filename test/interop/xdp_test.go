// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// ropewalkXDP is ropewalk with the AF_XDP underlay: its data messages bypass the network stack.
var ropewalkXDP = implementation{name: "ropewalk over AF_XDP", need: needXDP, start: startXDP}

func needXDP(t *testing.T) {
	t.Helper()
	needRopewalk(t)
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		t.Skip("this kernel has no AF_XDP")
	}
	expect.NoError(t, err)
	expect.NoError(t, unix.Close(fd))
}

func startXDP(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	return startDaemon(t, h, ropewalkBinary.Need(t), "run", "--underlay", "xdp", ifname)
}

// xdpPairings returns the pairings that test AF_XDP: against itself, against ropewalk over UDP sockets and against stock WireGuard.
func xdpPairings() []pairing {
	list := []pairing{{ropewalkXDP, ropewalkXDP}, {ropewalkXDP, inKernel}}
	if !inMachine() {
		list = append(list, pairing{ropewalkXDP, ropewalk}, pairing{ropewalkXDP, wireguardGo})
	}
	return list
}

// dataPath is the path of data messages, as `ropewalk show --lanes --json` reports it.
type dataPath struct {
	Path   string            `json:"path"`
	How    string            `json:"how"`
	Reason string            `json:"reason"`
	Lanes  int               `json:"lanes"`
	XDP    []xdpLane         `json:"xdp"`
	Drops  map[string]uint64 `json:"drops"`
}

// xdpLane has the AF_XDP counters of one lane. Slow counts runs that the UDP socket sent, Fallbacks lost AF_XDP sockets. The others
// count datagrams.
type xdpLane struct {
	Error     string `json:"error"`
	Received  uint64 `json:"received"`
	Sent      uint64 `json:"sent"`
	Slow      uint64 `json:"slow"`
	Lost      uint64 `json:"lost"`
	Fallbacks uint64 `json:"fallbacks"`
	Malformed uint64 `json:"malformed"`
}

// readDataPath returns the path that ropewalk reports.
func (x *tunnel) readDataPath(t *testing.T) (w dataPath, err error) {
	t.Helper()
	out, err := exec.Command(ropewalkBinary.Need(t), "show", x.ifname, "--lanes", "--json").Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if err != nil {
		return w, fmt.Errorf("reading the data path of %s: %w", x, err)
	}
	var list struct {
		Interfaces []struct {
			Path dataPath `json:"path"`
		} `json:"interfaces"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return w, fmt.Errorf("reading the data path of %s: %w", x, err)
	}
	if len(list.Interfaces) != 1 {
		return w, fmt.Errorf("reading the data path of %s: got %d interfaces, want 1", x, len(list.Interfaces))
	}
	return list.Interfaces[0].Path, nil
}

// sum adds up the counters of all lanes.
func (d dataPath) sum() (s xdpLane) {
	for _, l := range d.XDP {
		s.Received += l.Received
		s.Sent += l.Sent
		s.Slow += l.Slow
		s.Lost += l.Lost
		s.Fallbacks += l.Fallbacks
		s.Malformed += l.Malformed
	}
	return s
}

// setUnderlay sets the underlay mode of ropewalk.
func (x *tunnel) setUnderlay(t *testing.T, mode string) {
	t.Helper()
	if out, err := exec.Command(ropewalkBinary.Need(t), "set", x.ifname, "underlay", mode).CombinedOutput(); err != nil {
		t.Fatalf("setting the underlay of %s to %s: %v\n%s", x, mode, err, out)
	}
}

// checkDataPath returns nil if ropewalk's data messages take the path want.
func (x *tunnel) checkDataPath(t *testing.T, want string) error {
	t.Helper()
	w, err := x.readDataPath(t)
	if err == nil && w.Path != want {
		err = fmt.Errorf("%s uses the data path %s (%s), want %s", x, w.Path, w.Reason, want)
	}
	return err
}

// wantDataPath waits until ropewalk's data messages take the path want.
func (x *tunnel) wantDataPath(t *testing.T, want string) {
	t.Helper()
	expect.EventuallyNoError(t, x.String()+" to use the data path "+want, func() error { return x.checkDataPath(t, want) })
}

// startOverXDP starts both sides. It waits until each side configured for AF_XDP sends and receives through it, which also means
// that its neighbour is resolved.
func (l *lab) startOverXDP(t *testing.T) {
	t.Helper()
	l.start(t)
	for _, x := range l.xdpSides() {
		x.wantDataPath(t, "xdp")
	}
	for _, x := range l.both() {
		serveEcho(t, x.host)
	}
	for _, x := range l.xdpSides() {
		l.wantXDPTraffic(t, x)
	}
}

// xdpSides returns the sides that are configured for AF_XDP.
func (l *lab) xdpSides() (list []*tunnel) {
	for _, x := range l.both() {
		if x.impl.name == ropewalkXDP.name {
			list = append(list, x)
		}
	}
	return list
}

// wantNoXDPErrors asserts that AF_XDP carried datagrams in both directions without errors. One percent may be lost, because a full device
// queue drops packets, as it does with UDP sockets.
func (x *tunnel) wantNoXDPErrors(t *testing.T) {
	t.Helper()
	w, err := x.readDataPath(t)
	expect.NoError(t, err)
	s := w.sum()
	if s.Received == 0 || s.Sent == 0 || s.Lost > s.Sent/100 {
		t.Errorf("%s received %d datagrams over AF_XDP, sent %d and lost %d: %+v", x, s.Received, s.Sent, s.Lost, w)
	}
	if s.Malformed != 0 || s.Fallbacks != 0 {
		t.Errorf("%s: got %d malformed datagrams and %d fallbacks, want none", x, s.Malformed, s.Fallbacks)
	}
	for reason, n := range w.Drops {
		t.Errorf("the XDP program of %s dropped %d packets: %s", x, n, reason)
	}
	x.noErrors(t)
}

// wantXDPTraffic exchanges datagrams until x has sent and received some over AF_XDP.
func (l *lab) wantXDPTraffic(t *testing.T, x *tunnel) {
	t.Helper()
	w, err := x.readDataPath(t)
	expect.NoError(t, err)
	before := w.sum()
	expect.EventuallyNoError(t, x.String()+" to carry datagrams over AF_XDP", func() error {
		if err := tryExchange(x, l.other(x).inner4.Addr(), 100, retryInterval, 0); err != nil {
			return err
		}
		w, err := x.readDataPath(t)
		if now := w.sum(); err == nil && (now.Received <= before.Received || now.Sent <= before.Sent) {
			err = fmt.Errorf("no datagrams over AF_XDP: %+v", w)
		}
		return err
	})
}
