// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/drop"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
)

// shape describes a batch: a number of packets of one size.
type shape struct {
	name          string // in figures' names
	what          string
	packets, size int
}

// trainShape is a full TSO train, smallShape a batch of small packets.
func trainShape() shape { return shape{"train", "45 × 1440 B", 45, 1440} }
func smallShape() shape { return shape{"small", "64 B", 64, 64} }

func (s shape) bytes() int { return s.packets * s.size }

// cryptoPart is the share of a stretch that one crypto measurement takes.
const cryptoPart = 4

// crypto measures sealing and opening on one core, then on all at once, which share caches, memory and turbo.
func (s *suite) crypto(ctx context.Context) error {
	for _, cores := range []int{1, runtime.NumCPU()} {
		for _, sh := range []shape{trainShape(), smallShape()} {
			name, where := sh.name, "one core"
			if cores > 1 {
				name, where = sh.name+"_all", fmt.Sprintf("all %d cores at once", cores)
			}
			figure := func(verb string) Figure {
				return Figure{
					Stage: StageCrypto, Name: verb + "_" + name, Unit: "GB/s", What: fmt.Sprintf("%s %s, %s", verb, sh.what, where),
				}
			}
			err := s.take(ctx, []Figure{figure("seal"), figure("open")}, func(ctx context.Context, f []Figure) error {
				seal, open, err := cryptoRates(ctx, sh, cores, s.cfg.Stretch/cryptoPart)
				for i, perSecond := range []float64{seal, open} {
					f[i].Value = perSecond * float64(sh.size) / 1e9
					f[i].More = map[string]float64{"kpps": perSecond / 1e3}
				}
				return err
			})
			if err != nil {
				return err
			}
		}
		if runtime.NumCPU() == 1 {
			break
		}
	}
	return nil
}

// cryptoRates returns the total packets per second that the given number of cores seal and open.
func cryptoRates(ctx context.Context, sh shape, cores int, stretch time.Duration) (seal, open float64, err error) {
	rigs, errs := make([]*cryptoRig, cores), make([]error, cores)
	for i := range rigs {
		if rigs[i], err = newCryptoRig(sh); err != nil {
			return 0, 0, err
		}
	}
	var wg sync.WaitGroup
	for i, r := range rigs {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			errs[i] = repeat(ctx, stretch, r.round)
		})
	}
	wg.Wait()
	for _, r := range rigs {
		seal += r.seal.perSecond(sh.packets)
		open += r.open.perSecond(sh.packets)
	}
	return seal, open, errors.Join(errs...)
}

// cryptoRig is the two ends of a session, and a train that goes back and forth between sealed and open.
type cryptoRig struct {
	a, b       *session.Keypair
	layout     session.Layout
	buf        []byte
	out        []session.Message
	scratch    session.Scratch
	seal, open meter
}

func newCryptoRig(sh shape) (*cryptoRig, error) {
	keys := noise.Keys{Local: 1, Remote: 2, Initiator: true}
	defer keys.Wipe()
	_, _ = rand.Read(keys.Send[:]) // never fails
	_, _ = rand.Read(keys.Recv[:])
	a, err := session.NewKeypair(&keys, 0)
	if err != nil {
		return nil, fmt.Errorf("making a session: %w", err)
	}
	keys.Send, keys.Recv = keys.Recv, keys.Send
	keys.Local, keys.Remote, keys.Initiator = keys.Remote, keys.Local, false
	b, err := session.NewKeypair(&keys, 0)
	if err != nil {
		return nil, fmt.Errorf("making a session: %w", err)
	}
	l := session.NewLayout(sh.packets, sh.size, sh.size, sh.size)
	return &cryptoRig{a: a, b: b, layout: l, buf: make([]byte, l.Size()), out: make([]session.Message, sh.packets)}, nil
}

func (r *cryptoRig) round(warm bool) error {
	counter, ok := r.a.Reserve(r.layout.Segments)
	if !ok {
		return errors.New("the session has no counters left")
	}
	begin := time.Now()
	size := r.a.SealTrain(&r.scratch, r.buf, r.layout, counter)
	sealed := time.Now()
	n := r.b.OpenTrain(&r.scratch, 0, r.buf[:size], r.layout.Stride(), r.out)
	opened := time.Now()
	if n != r.layout.Segments || r.out[0].Drop != drop.None || r.out[n-1].Drop != drop.None {
		return errors.New("a train did not open again")
	}
	if warm {
		r.seal.add(sealed.Sub(begin))
		r.open.add(opened.Sub(sealed))
	}
	return nil
}
