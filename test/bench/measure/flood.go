// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

const (
	// floodTrain is the number of initiations in one send: by UDP_SEGMENT, so that sending costs as little as it can.
	floodTrain = 60
	// floodTrains is how many different sends there are, which come again and again.
	floodTrains = 32
)

// flood sends handshake initiations without a rate limit, in its own goroutine.
type flood struct {
	fd     int
	to     unix.Sockaddr
	trains [][]byte

	stopping atomic.Bool
	done     sync.WaitGroup
	sent     uint64 // initiations; after done
	err      error  // of the last send that failed; after done
	begin    time.Time
}

// startFlood sends initiations for a responder's key from an IPv4 address of a host to an address, until stop.
func startFlood(h *netlab.Host, responder noise.PublicKey, from netip.Addr, to netip.AddrPort) (*flood, error) {
	all, err := randomInitiations(floodTrain*floodTrains, responder)
	if err != nil {
		return nil, err
	}
	f := &flood{fd: -1, to: &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, begin: time.Now()}
	for i := range floodTrains {
		f.trains = append(f.trains, all[i*floodTrain*wire.InitiationSize:][:floodTrain*wire.InitiationSize])
	}
	if err := h.Do(func() error { return f.open(from) }); err != nil {
		return nil, fmt.Errorf("opening a socket for a flood: %w", err)
	}
	f.done.Go(f.run)
	return f, nil
}

// open leaves the socket unconnected: on a connected one, an ICMP port unreachable would fail the next send.
func (f *flood) open(from netip.Addr) (err error) {
	f.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err = unix.Bind(f.fd, &unix.SockaddrInet4{Addr: from.As4()}); err == nil {
		err = unix.SetsockoptInt(f.fd, unix.SOL_UDP, unix.UDP_SEGMENT, wire.InitiationSize)
	}
	if err != nil {
		_ = unix.Close(f.fd)
	}
	return err
}

func (f *flood) run() {
	for i := 0; i == 0 || !f.stopping.Load(); i++ {
		if err := unix.Sendto(f.fd, f.trains[i%len(f.trains)], 0, f.to); err != nil {
			f.err = err
			continue
		}
		f.sent += floodTrain
	}
}

// stop ends the flood and returns how many initiations were sent, and how many per second. Sending none is an error,
// because the measurement then ran without a flood.
func (f *flood) stop() (sent uint64, perSecond float64, err error) {
	f.stopping.Store(true)
	f.done.Wait()
	seconds := time.Since(f.begin).Seconds()
	_ = unix.Close(f.fd)
	if f.sent == 0 {
		return 0, 0, fmt.Errorf("a flood sent nothing: %w", f.err)
	}
	return f.sent, float64(f.sent) / seconds, nil
}
