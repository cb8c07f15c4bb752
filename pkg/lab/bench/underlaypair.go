// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/lab/testbed"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
)

// inFlight is the highest number of trains in flight. The receive buffer holds that many with room to spare.
const inFlight = 16

// underlayPair measures a sender and a receiver on threads of their own: caches are as cold, and threads as often asleep,
// as in a tunnel.
func (s *suite) underlayPair(ctx context.Context) error {
	f := Figure{
		Stage: StageUnderlay, Name: "pair_gso", Unit: "Gbit/s", What: "both, on threads of their own, " + outerShape().what,
	}
	return s.take(ctx, []Figure{f}, func(ctx context.Context, f []Figure) (err error) {
		lab, err := netlab.New(s.cfg.Prefix)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, lab.Close()) }()
		r, err := newUnderlayRig(lab, udp.Config{})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, r.close()) }()
		gbps, cores, err := r.both(ctx, s.cfg.Stretch/2)
		f[0].Value, f[0].More = gbps, map[string]float64{"cores": cores, "cores_per_gbps": 0}
		if gbps > 0 {
			f[0].More["cores_per_gbps"] = cores / gbps
		}
		return err
	})
}

// both sends and receives at once, and returns what came and how many of the machine's cores worked.
func (r *underlayRig) both(ctx context.Context, stretch time.Duration) (gbps, cores float64, err error) {
	var received atomic.Int64
	credits, done := make(chan struct{}, inFlight), make(chan error, 1)
	before, err := testbed.BusyCPU()
	begin := time.Now()
	go func() { done <- r.drain(&received, credits) }()
	sendErr := r.floodFor(ctx, stretch, &received, credits)
	seconds := time.Since(begin).Seconds()
	got := received.Load()
	after, err2 := testbed.BusyCPU()
	closeErr := r.close()
	if err := errors.Join(err, err2, sendErr, closeErr, <-done); err != nil {
		return 0, 0, err
	}
	return float64(got) * 8 / 1e9 / seconds, (after - before).Seconds() / seconds, nil
}

// floodFor sends for a stretch, or as many as it takes until something has come: on a busy machine the receiver may sleep
// through one.
func (r *underlayRig) floodFor(ctx context.Context, stretch time.Duration, received *atomic.Int64, credits chan<- struct{}) error {
	for limit := time.Now().Add(stretch + edgeLimit); ; {
		part, cancel := context.WithTimeout(ctx, stretch)
		err := r.flood(part, credits)
		cancel()
		switch {
		case err != nil || received.Load() > 0 || ctx.Err() != nil:
			return err
		case time.Now().After(limit):
			return errors.New("datagrams were lost on the cable")
		}
	}
}

// flood sends as long as there is credit, until ctx is done.
func (r *underlayRig) flood(ctx context.Context, credits chan<- struct{}) error {
	for {
		select {
		case credits <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		if r.a.Lane(0).Send(r.runs) != 0 {
			return fmt.Errorf("sending datagrams: %w", r.runs[0].Err)
		}
	}
}

// drain receives until the port is closed, and gives a credit back for each train's worth.
func (r *underlayRig) drain(received *atomic.Int64, credits <-chan struct{}) error {
	train, owed := int64(outerShape().bytes()), int64(0)
	for {
		n, err := r.b.Lane(0).Recv(r.rx)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("receiving datagrams: %w", err)
		}
		for _, d := range r.rx[:n] {
			owed += int64(d.N)
		}
		for ; owed >= train; owed -= train {
			received.Add(train)
			<-credits
		}
	}
}
