// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// express is a ropewalk whose data messages go by AF_XDP, past the stack.
var express = implementation{name: "ropewalk over AF_XDP", need: needExpress, start: startExpress}

func needExpress(t *testing.T) {
	t.Helper()
	needRopewalk(t)
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		t.Skip("this kernel has no AF_XDP")
	}
	must(t, err)
	must(t, unix.Close(fd))
}

func startExpress(t *testing.T, h *host, ifname string) func() error {
	t.Helper()
	return startDaemon(t, h, ropewalkBinary.Need(t), "run", "--underlay", "xdp", ifname)
}

// expressPairings are those of AF_XDP: with itself, with ropewalk's own sockets and with stock WireGuards.
func expressPairings() []pairing {
	list := []pairing{{express, express}, {express, inKernel}}
	if !inMachine() {
		list = append(list, pairing{express, ropewalk}, pairing{express, wireguardGo})
	}
	return list
}

// way is what `ropewalk show --lanes --json` tells of the way that data messages take.
type way struct {
	Way    string            `json:"way"`
	How    string            `json:"how"`
	Reason string            `json:"reason"`
	Lanes  int               `json:"lanes"`
	XDP    []expressLane     `json:"xdp"`
	Drops  map[string]uint64 `json:"drops"`
}

// expressLane counts datagrams, but for slow, which counts runs that left by the UDP socket.
type expressLane struct {
	Error     string `json:"error"`
	Received  uint64 `json:"received"`
	Sent      uint64 `json:"sent"`
	Slow      uint64 `json:"slow"`
	Lost      uint64 `json:"lost"`
	Fallbacks uint64 `json:"fallbacks"`
	Malformed uint64 `json:"malformed"`
}

// readWay asks a ropewalk.
func (x *tunnel) readWay(t *testing.T) (w way, err error) {
	t.Helper()
	out, err := exec.Command(ropewalkBinary.Need(t), "show", x.ifname, "--lanes", "--json").Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if err != nil {
		return w, fmt.Errorf("asking %s for its way: %w", x, err)
	}
	var list struct {
		Interfaces []struct {
			Way way `json:"way"`
		} `json:"interfaces"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return w, fmt.Errorf("asking %s for its way: %w", x, err)
	}
	if len(list.Interfaces) != 1 {
		return w, fmt.Errorf("asking %s for its way: %d interfaces", x, len(list.Interfaces))
	}
	return list.Interfaces[0].Way, nil
}

// sum adds up what all lanes have counted.
func (w way) sum() (s expressLane) {
	for _, l := range w.XDP {
		s.Received += l.Received
		s.Sent += l.Sent
		s.Slow += l.Slow
		s.Lost += l.Lost
		s.Fallbacks += l.Fallbacks
		s.Malformed += l.Malformed
	}
	return s
}

// setUnderlay tells a ropewalk which way to take.
func (x *tunnel) setUnderlay(t *testing.T, mode string) {
	t.Helper()
	if out, err := exec.Command(ropewalkBinary.Need(t), "set", x.ifname, "underlay", mode).CombinedOutput(); err != nil {
		t.Fatalf("setting the underlay of %s to %s: %v\n%s", x, mode, err, out)
	}
}

// onWay returns nil when a ropewalk's data messages take that way.
func (x *tunnel) onWay(t *testing.T, want string) error {
	t.Helper()
	w, err := x.readWay(t)
	if err == nil && w.Way != want {
		err = fmt.Errorf("%s goes by %s (%s), want %s", x, w.Way, w.Reason, want)
	}
	return err
}

// wantWay waits until it does.
func (x *tunnel) wantWay(t *testing.T, want string) {
	t.Helper()
	eventually(t, x.String()+" to go by "+want, patience, func() error { return x.onWay(t, want) })
}

// startByExpress starts both sides, and waits until those that are to use AF_XDP do, with each other's neighbours found.
func (l *lab) startByExpress(t *testing.T) {
	t.Helper()
	l.start(t)
	for _, x := range l.express() {
		x.wantWay(t, "xdp")
	}
	for _, x := range l.both() {
		serveEcho(t, x.host)
	}
	for _, x := range l.express() {
		l.wantByXDP(t, x)
	}
}

// express returns the sides that are to use AF_XDP.
func (l *lab) express() (list []*tunnel) {
	for _, x := range l.both() {
		if x.impl.name == express.name {
			list = append(list, x)
		}
	}
	return list
}

// wantClean asserts that AF_XDP carried datagrams both ways and that none of them was in error. A full device may drop some,
// as it does with those of sockets.
func (x *tunnel) wantClean(t *testing.T) {
	t.Helper()
	w, err := x.readWay(t)
	must(t, err)
	s := w.sum()
	if s.Received == 0 || s.Sent == 0 || s.Lost > s.Sent/100 {
		t.Errorf("%s received %d datagrams by AF_XDP, sent %d and lost %d: %+v", x, s.Received, s.Sent, s.Lost, w)
	}
	if s.Malformed != 0 || s.Fallbacks != 0 {
		t.Errorf("%s found %d datagrams malformed and fell back %d times", x, s.Malformed, s.Fallbacks)
	}
	for reason, n := range w.Drops {
		t.Errorf("the XDP program of %s dropped %d packets: %s", x, n, reason)
	}
	x.noErrors(t)
}

// wantByXDP sends back and forth until datagrams come and go by AF_XDP.
func (l *lab) wantByXDP(t *testing.T, x *tunnel) {
	t.Helper()
	w, err := x.readWay(t)
	must(t, err)
	before := w.sum()
	eventually(t, x.String()+" to carry by AF_XDP", patience, func() error {
		if err := tryExchange(x, l.other(x).inner4.Addr(), 100, again, 0); err != nil {
			return err
		}
		w, err := x.readWay(t)
		if now := w.sum(); err == nil && (now.Received <= before.Received || now.Sent <= before.Sent) {
			err = fmt.Errorf("nothing went by AF_XDP: %+v", w)
		}
		return err
	})
}
