// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/scale/model"
)

// costFile is the input of the model, and the file that `scale costs` writes.
type costFile struct {
	Command string `json:"command"`
	Machine string `json:"machine"`
	// Train is the mean train of a bulk transfer, Ack its acknowledgement.
	Train model.Train `json:"train"`
	Ack   model.Train `json:"ack"`
	// Stages are the costs on two machines with a NIC each. Send is measured over a veth, with the receiver's IP and UDP in place
	// of a driver. CableReceive is the cost of Receive over a veth, where trains are not split.
	Stages       model.Costs `json:"stages"`
	CableReceive model.Cost  `json:"cable_receive"`
	// Memory is the time of the engine's stages per train in an isolated loop, in ns. InSitu is the factor by which they are slower
	// inside a tunnel: transmit, receive.
	Memory      map[string]float64    `json:"memory_ns"`
	InSitu      [2]float64            `json:"in_situ"`
	Lines       model.Lines           `json:"lines"`
	HandOff     handOffCosts          `json:"hand_off"`
	Contentions map[string]contention `json:"contentions"`
}

const (
	costStreams  = 4
	costDuration = 2 * time.Second
	benchRounds  = 40
)

// measureCosts measures all costs in rounds, and takes medians.
func measureCosts(ctx context.Context, rounds int, progress io.Writer) (*costFile, error) {
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 12)) // the threads of two nodes block in system calls
	f := &costFile{Command: "make scale-costs", Machine: machine(), Ack: model.Train{Packets: 1, Bytes: 52}}
	var err error
	if f.Contentions, err = contentions(); err != nil {
		return nil, err
	}
	f.Lines = linesOf(f.Contentions)
	if f.HandOff, err = measureHandOff(); err != nil {
		return nil, err
	}
	s, err := newSurvey()
	if err != nil {
		return nil, err
	}
	for round := range rounds {
		for kind := plainCable; kind <= frameCable; kind++ {
			fmt.Fprintf(progress, "round %d of %d, %s\n", round+1, rounds, kind)
			if err := s.round(ctx, kind); err != nil {
				return nil, fmt.Errorf("measuring over %s: %w", kind, err)
			}
		}
	}
	s.fill(f)
	return f, nil
}

// linesOf computes how long a lane holds each shared cache line. Two threads that only access one line hold it half of the time
// each. The time that senders with separate sockets cost each other in the kernel counts as one line.
func linesOf(c map[string]contention) model.Lines {
	w45, w1 := c[contendWindow45].Shared/2, c[contendWindow1].Shared/2
	packet := max(w45-w1, 0) / (trainSegments - 1)
	return model.Lines{
		Nonce: round2(c[contendReserve].Shared / 2), WindowElement: round2(max(w1-packet, 0)), WindowPacket: round2(packet),
		Send: round2(max(c[contendSend].Separate-c[contendSend].Alone, 0)), Alone: round2(c[contendReserve].Alone),
	}
}

// stageTimes is the time of each stage per train, in ns.
type stageTimes map[model.Stage]float64

// survey collects measurements of trains with data, and of acknowledgements.
type survey struct {
	clock                int64
	trainAlone, ackAlone trainTimes // in an isolated loop, of a train and of an acknowledgement
	data, acks           map[cableKind][]stageTimes
	trains               []model.Train
}

func newSurvey() (*survey, error) {
	s := &survey{clock: clockCost(), data: map[cableKind][]stageTimes{}, acks: map[cableKind][]stageTimes{}}
	for _, m := range []struct {
		into          *trainTimes
		packets, size int
	}{{&s.trainAlone, trainSegments, trainPayload}, {&s.ackAlone, 1, 12}} {
		l, err := newTrainBench(m.packets, m.size)
		if err != nil {
			return nil, err
		}
		if *m.into, err = l.time(benchRounds); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// round measures a bulk transfer over one kind of cable.
func (s *survey) round(ctx context.Context, kind cableKind) (err error) {
	r, err := newTunnel(kind, s.clock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	before := napiTimes()
	t, err := r.transfer(ctx, costStreams, costDuration)
	if err != nil {
		return err
	}
	napi := diffTimes(before, napiTimes())
	if kind != plainCable && (len(napi) != 2 || napi[1] == 0) {
		return fmt.Errorf("got CPU times %v ns of the cable's NAPI threads, want two threads that ran", napi)
	}
	trains := float64(r.a.tx.in.elements.Load())
	train := model.Train{
		Packets: int(float64(r.a.tx.out.packets.Load())/trains + 0.5),
		Bytes:   int(float64(r.a.tx.in.bytes.Load())/trains + 0.5),
	}
	data, acks := points(r.a.tx, r.b.rx, trains), points(r.b.tx, r.a.rx, trains)
	data[model.AppSend], data[model.AppReceive] = float64(t.send)/trains, float64(t.receive)/trains
	if kind != plainCable {
		data[model.Softirq], acks[model.Softirq] = float64(napi[0])/trains, float64(napi[1])/trains
	}
	if kind == plainCable {
		s.trains = append(s.trains, train)
	}
	data.scale(float64(s.trains[0].Bytes) / float64(train.Bytes))
	s.data[kind], s.acks[kind] = append(s.data[kind], data), append(s.acks[kind], acks)
	return nil
}

// points returns the stage times of one direction. Split has the whole time of the engine when sending, Open when receiving.
func points(tx, rx *laneTimer, trains float64) stageTimes {
	ns := func(n *atomic.Int64) float64 { return float64(n.Load()) / trains }
	return stageTimes{
		model.TUNRead: ns(&tx.in.ns), model.Split: ns(&tx.engineNS), model.Send: ns(&tx.out.ns),
		model.Receive: ns(&rx.in.ns), model.Open: ns(&rx.engineNS), model.TUNWrite: ns(&rx.out.ns),
	}
}

func (p stageTimes) scale(by float64) {
	for s := range p {
		p[s] *= by
	}
}

// fill computes costs from the medians of all measurements.
func (s *survey) fill(f *costFile) {
	var packets, sizes []float64
	for _, t := range s.trains {
		packets, sizes = append(packets, float64(t.Packets)), append(sizes, float64(t.Bytes))
	}
	f.Train = model.Train{Packets: int(median(packets)), Bytes: int(median(sizes))}
	f.Memory = map[string]float64{
		"split": round2(s.trainAlone.split), "seal": round2(s.trainAlone.seal), "open": round2(s.trainAlone.open), "merge": round2(s.trainAlone.merge),
	}
	for stage, kind := range map[model.Stage]cableKind{
		model.TUNRead: plainCable, model.TUNWrite: plainCable, model.Send: plainCable, model.Receive: frameCable,
	} {
		f.Stages[stage] = s.perByte(stage, kind, f)
	}
	f.CableReceive = s.perByte(model.Receive, plainCable, f)
	for _, stage := range []model.Stage{model.AppSend, model.AppReceive} {
		f.Stages[stage] = rounded(0, 0, s.median(s.data, stage, plainCable)/float64(f.Train.Bytes))
	}
	big, small := s.median(s.data, model.Softirq, frameCable), s.median(s.acks, model.Softirq, frameCable)
	element, packet := solveTwo(big, small, [2]float64{1, 1}, [2]float64{float64(f.Train.Packets), 1})
	f.Stages[model.Softirq] = rounded(element, packet, 0)
	f.InSitu[0] = s.splitEngineTime(f, model.Split, model.Seal, [2]float64{s.trainAlone.split, s.ackAlone.split}, [2]float64{s.trainAlone.seal, s.ackAlone.seal})
	f.InSitu[1] = s.splitEngineTime(f, model.Merge, model.Open, [2]float64{s.trainAlone.merge, s.ackAlone.merge}, [2]float64{s.trainAlone.open, s.ackAlone.open})
}

// median returns the median time of a stage over a kind of cable.
func (s *survey) median(of map[cableKind][]stageTimes, stage model.Stage, kind cableKind) float64 {
	var all []float64
	for _, p := range of[kind] {
		all = append(all, p[stage])
	}
	return median(all)
}

// perByte computes the cost of a system call from two points: a train and an acknowledgement.
func (s *survey) perByte(stage model.Stage, kind cableKind, f *costFile) model.Cost {
	element, perByte := solveTwo(s.median(s.data, stage, kind), s.median(s.acks, stage, kind),
		[2]float64{1, 1}, [2]float64{float64(f.Train.Bytes), float64(f.Ack.Bytes)})
	return rounded(element, 0, perByte)
}

// splitEngineTime divides the engine's time of one direction between the cipher's stage and the plain stage. The time is a constant
// per element plus a multiple of the isolated times of both stages. The constant goes to the plain stage. It returns the multiple.
func (s *survey) splitEngineTime(f *costFile, plain, cipher model.Stage, plainAlone, cipherAlone [2]float64) (times float64) {
	stage := model.Split
	if cipher == model.Open {
		stage = model.Open
	}
	element, times := solveTwo(s.median(s.data, stage, plainCable), s.median(s.acks, stage, plainCable),
		[2]float64{1, 1}, [2]float64{plainAlone[0] + cipherAlone[0], plainAlone[1] + cipherAlone[1]})
	packets := [2]float64{trainSegments, 1}
	sizes := [2]float64{trainSegments * (trainPayload + 40), 52}
	packet, perByte := solveTwo(plainAlone[0], plainAlone[1], packets, sizes)
	f.Stages[plain] = rounded(element, packet*times, perByte*times)
	packet, perByte = solveTwo(cipherAlone[0], cipherAlone[1], packets, sizes)
	f.Stages[cipher] = rounded(0, packet*times, perByte*times)
	return round2(times)
}

// solveTwo solves a·x[0] + b·y[0] = big and a·x[1] + b·y[1] = small. If a or b would be negative, it is 0 and only the first
// equation holds.
func solveTwo(big, small float64, x, y [2]float64) (a, b float64) {
	a = (big*y[1] - small*y[0]) / (x[0]*y[1] - x[1]*y[0])
	a = min(max(a, 0), big/x[0])
	return a, (big - a*x[0]) / y[0]
}

func rounded(element, packet, perByte float64) model.Cost {
	return model.Cost{Element: round2(element), Packet: round2(packet), Byte: math.Round(perByte*1e5) / 1e5}
}

func round2(x float64) float64 { return math.Round(x*100) / 100 }

// String implements fmt.Stringer.
func (k cableKind) String() string {
	return [...]string{"a cable", "a cable that receives frames by NAPI"}[k]
}

// machine returns a description of this machine in one line.
func machine() string {
	model := "unknown processor"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.Join(strings.Fields(value), " ")
			}
		}
	}
	release := "unknown"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		b, _, _ := bytes.Cut(u.Release[:], []byte{0})
		release, _, _ = strings.Cut(string(b), "-")
	}
	return fmt.Sprintf("%d cores of %s, Linux %s, %s", runtime.NumCPU(), model, release, runtime.Version())
}

func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("reading %s: %w", path, err)
	}
	return nil
}

func writeJSON(path string, from any) error {
	text, err := json.MarshalIndent(from, "", "  ")
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
