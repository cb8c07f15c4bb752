// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
)

const (
	nullTunnelDevice = "bench0"
	// nullTunnelBatch is the number of elements that one read takes.
	nullTunnelBatch = 64
)

// nullTunnel is a pair of TUNs, one in each host, that forwards elements unchanged. Its throughput is the limit of the
// host's network stack and of the TUN.
type nullTunnel struct {
	devices [2]tun.Device
	pumps   sync.WaitGroup
}

// newNullTunnel creates and starts a null tunnel, and brings both ends up with the sides' tunnel addresses.
func newNullTunnel(a, b *Side, queues int) (*nullTunnel, error) {
	s := &nullTunnel{}
	for i, side := range []*Side{a, b} {
		err := side.Host.Do(func() (err error) {
			s.devices[i], err = tun.Open(tun.Config{Name: nullTunnelDevice, Queues: queues, MTU: tunnelMTU})
			return err
		})
		if err == nil {
			err = side.Host.SetUp(nullTunnelDevice, 0, side.Tunnel[:]...)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("creating end %d of a null tunnel: %w", i+1, err), s.close())
		}
	}
	for i, q := range s.devices[0].Queues() {
		other := s.devices[1].Queues()[i]
		s.pumps.Go(func() { pump(q, other) })
		s.pumps.Go(func() { pump(other, q) })
	}
	return s, nil
}

// pump forwards elements until a device is closed. It drops an element whose write fails.
func pump(from, to tun.Queue) {
	bufs, sizes := make([][]byte, nullTunnelBatch), make([]int, nullTunnelBatch)
	for i := range bufs {
		bufs[i] = make([]byte, tun.MaxTrain)
	}
	parts := make([][]byte, 1)
	for {
		n, err := from.Read(bufs, sizes)
		if err != nil {
			return
		}
		for i := range n {
			parts[0] = bufs[i][:sizes[i]]
			if errors.Is(to.Write(parts), os.ErrClosed) {
				return
			}
		}
	}
}

func (s *nullTunnel) close() error {
	var errs []error
	for _, d := range s.devices {
		if d != nil {
			errs = append(errs, d.Close())
		}
	}
	s.pumps.Wait()
	return errors.Join(errs...)
}
