// SPDX-License-Identifier: Apache-2.0

package xdp

import (
	"encoding/binary"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/ebpf/programs"
	"github.com/ropewalk/ropewalk/pkg/netio/xsk"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestOnlyChannelMessagesAreRecorded(t *testing.T) {
	notification := func(data ...byte) []syscall.NetlinkMessage { return []syscall.NetlinkMessage{{Data: data}} }
	for name, c := range map[string]struct {
		messages []syscall.NetlinkMessage
		err      error
		matters  bool
	}{
		"queues":    {notification(unix.ETHTOOL_MSG_CHANNELS_NTF, 1, 0, 0), nil, true},
		"features":  {notification(unix.ETHTOOL_MSG_FEATURES_NTF, 1, 0, 0), nil, false},
		"nothing":   {notification(), nil, false},
		"both":      {append(notification(unix.ETHTOOL_MSG_FEATURES_NTF), notification(unix.ETHTOOL_MSG_CHANNELS_NTF)...), nil, true},
		"some lost": {nil, unix.ENOBUFS, true},
	} {
		var w watcher
		if got := w.recordQueues(c.messages, c.err); got != c.matters || w.changed != c.matters {
			t.Errorf("%s: got %v, %v, want %v", name, got, w.changed, c.matters)
		}
	}
}

// setQueues is ethtool -L at one end.
func (p *pair) setQueues(end, rx, tx int) error {
	index := p.indexOf(end, p.devs[end])
	return p.hosts[end].Do(func() error {
		family, err := ethtoolFamily()
		if err != nil {
			return err
		}
		header := attr(unix.ETHTOOL_A_CHANNELS_HEADER|unix.NLA_F_NESTED, attr(unix.ETHTOOL_A_HEADER_DEV_INDEX, number(index)))
		request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
		request.AddRawData(slices.Concat(
			[]byte{unix.ETHTOOL_MSG_CHANNELS_SET, 1, 0, 0}, header,
			attr(unix.ETHTOOL_A_CHANNELS_RX_COUNT, number(rx)), attr(unix.ETHTOOL_A_CHANNELS_TX_COUNT, number(tx)),
		))
		_, err = request.Execute(unix.NETLINK_GENERIC, 0)
		return err
	})
}

func number(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

// xdpBinding returns a Binding for a device at one end, with a program of its own.
func (l *tunnel) xdpBinding(end int) Binding {
	l.Helper()
	program, err := programs.LoadClassify(programs.ClassifyOptions{ListenPort: tunnelPort, MaxFrame: MaxFrame(0)})
	expect.NoError(l.TB, err)
	return Binding{Device: l.devs[end], Mode: xsk.Copy, Program: program}
}

func (l *tunnel) awaitReady(what string, n int) {
	l.Helper()
	for _, p := range l.ports {
		expect.Eventually(l.TB, what, func() bool { s := p.Status(); return s.Ready() == n })
	}
}

// TestQueuesChangeUnderTraffic: new queues are used at once. The kernel removes no queue with an AF_XDP socket, so
// removal needs another binding in the meantime.
func TestQueuesChangeUnderTraffic(t *testing.T) {
	l := &tunnel{pair: newPair(t, 2)}
	var choosers [2]chooser
	for end := range l.choose {
		err := l.setQueues(end, 1, 1)
		if errors.Is(err, unix.ENOENT) {
			t.Skip("needs a kernel with CONFIG_ETHTOOL_NETLINK")
		}
		expect.NoError(t, err)
		choosers[end].set(l.xdpBinding(end))
		l.choose[end] = choosers[end].choose
	}
	l.startBoth(tunnelModes[0])
	l.awaitXDP()
	for _, p := range l.ports {
		if s := p.Status(); s.Ready() != 1 || !errors.Is(s.Lanes[1].Err, xsk.ErrNoQueue) {
			t.Fatalf("with one queue: %+v", s)
		}
	}
	from, to := l.dial(false)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for running := true; running && err == nil; {
			select {
			case <-stop:
				running = false
			default:
			}
			err = transfer(from, to, 1<<20, 1)
		}
		done <- err
	}()
	for range 3 {
		// With XDP, a veth must have at least as many receive queues as the other end has transmit queues.
		expect.NoError(t, errors.Join(l.setQueues(0, 2, 1), l.setQueues(1, 2, 2), l.setQueues(0, 2, 2)))
		l.awaitReady("a socket for the queue that appeared", 2)
		if err := l.setQueues(0, 1, 2); !errors.Is(err, unix.EINVAL) {
			t.Fatalf("a queue with a socket was taken away: got error %v, want %v", err, unix.EINVAL)
		}
		for end, p := range l.ports {
			choosers[end].set(Binding{})
			p.Reconsider()
		}
		l.awaitReady("no socket", 0)
		expect.Eventually(t, "the kernel to have let go of the queues", func() bool { // after the sockets are closed
			return errors.Join(l.setQueues(0, 2, 1), l.setQueues(1, 1, 1), l.setQueues(0, 1, 1)) == nil
		})
		for end, p := range l.ports {
			choosers[end].set(l.xdpBinding(end))
			p.Reconsider()
		}
		l.awaitReady("a socket again", 1)
	}
	close(stop)
	expect.NoError(t, <-done)
	for _, p := range l.ports {
		if s := l.carried(p); s.Malformed != 0 {
			t.Errorf("got %+v, want Malformed 0", s)
		}
	}
	l.close()
}
