// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
)

// outerShape is the largest batch that fits one GSO send: a packet less than trainShape sealed.
func outerShape() shape { return shape{"gso", "44 × 1472 B", 44, 1472} }

// underlay measures the UDP sockets between two hosts: trains by GSO and GRO, and the same datagrams one by one.
func (s *suite) underlay(ctx context.Context) error {
	for _, c := range []struct {
		name, what string
		cfg        udp.Config
	}{
		{"gso", "with GSO and GRO", udp.Config{}},
		{"single", "without", udp.Config{NoGSO: true, NoGRO: true}},
	} {
		figure := func(verb string) Figure {
			return Figure{
				Stage: StageUnderlay, Name: verb + "_" + c.name, Unit: "Gbit/s",
				What: fmt.Sprintf("%s %s %s, one core", verb, outerShape().what, c.what),
			}
		}
		err := s.take(ctx, []Figure{figure("send"), figure("receive")}, func(ctx context.Context, f []Figure) error {
			send, receive, err := s.underlayRates(ctx, c.cfg, s.cfg.Stretch/edgePart)
			for i, perSecond := range []float64{send, receive} {
				f[i].Value = gigabits(perSecond, outerShape())
				f[i].More = map[string]float64{"kpps": perSecond / 1e3}
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return s.underlayPair(ctx)
}

// underlayRates are the datagrams per second that one core sends and receives.
func (s *suite) underlayRates(ctx context.Context, cfg udp.Config, stretch time.Duration) (send, receive float64, err error) {
	lab, err := netlab.New(s.cfg.Prefix)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, lab.Close()) }()
	r, err := newUnderlayRig(lab, cfg)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	ctx, cancel := context.WithTimeoutCause(ctx, stretch+edgeLimit, errors.New("datagrams were lost on the cable"))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = r.close() })()
	err = repeat(ctx, stretch, r.round)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return r.send.perSecond(outerShape().packets), r.receive.perSecond(outerShape().packets), err
}

// underlayRig is a port in each of two hosts.
type underlayRig struct {
	a, b          *udp.Port
	runs          []underlay.Run
	rx            []underlay.Datagrams
	send, receive meter
}

func newUnderlayRig(lab *netlab.Lab, cfg udp.Config) (*underlayRig, error) {
	hosts, to, err := cabledHosts(lab)
	if err != nil {
		return nil, err
	}
	r := &underlayRig{}
	err = errors.Join(
		hosts[0].Do(func() (err error) { r.a, err = udp.Open(cfg); return err }),
		hosts[1].Do(func() (err error) { r.b, err = udp.Open(cfg); return err }),
	)
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	sh := outerShape()
	ep := &underlay.Endpoint{Dst: netip.AddrPortFrom(to, r.b.LocalPort())}
	r.runs = []underlay.Run{{
		To: ep, Parts: [][]byte{make([]byte, sh.bytes())}, SegSize: sh.size, Segments: sh.packets,
	}}
	r.rx = make([]underlay.Datagrams, underlay.MaxRunSegments)
	for i := range r.rx {
		r.rx[i].Buf = make([]byte, 65535)
	}
	return r, nil
}

// cabledHosts are two, and the address of the second.
func cabledHosts(lab *netlab.Lab) (hosts [2]*netlab.Host, to netip.Addr, err error) {
	for i, name := range []string{"a", "b"} {
		if hosts[i], err = lab.Host(name); err != nil {
			return hosts, to, err
		}
	}
	a, b := netip.MustParsePrefix("192.168.77.1/24"), netip.MustParsePrefix("192.168.77.2/24")
	_, err = lab.Cable(hosts[0], hosts[1], netlab.CableConfig{AddrsA: []netip.Prefix{a}, AddrsB: []netip.Prefix{b}})
	return hosts, b.Addr(), err
}

func (r *underlayRig) close() error {
	var errs []error
	for _, p := range []*udp.Port{r.a, r.b} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	return errors.Join(errs...)
}

// round sends a train and receives it, on one core: each is timed by itself. On a veth, sending takes datagrams all the
// way into the receiving socket.
func (r *underlayRig) round(warm bool) error {
	begin := time.Now()
	if r.a.Lane(0).Send(r.runs) != 0 {
		return fmt.Errorf("sending datagrams: %w", r.runs[0].Err)
	}
	sent := time.Now()
	for left := outerShape().bytes(); left > 0; {
		n, err := r.b.Lane(0).Recv(r.rx)
		if err != nil {
			return fmt.Errorf("receiving datagrams: %w", err)
		}
		for _, d := range r.rx[:n] {
			left -= d.N
		}
	}
	if warm {
		r.send.add(sent.Sub(begin))
		r.receive.add(time.Since(sent))
	}
	return nil
}
