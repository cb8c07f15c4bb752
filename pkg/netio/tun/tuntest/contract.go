// SPDX-License-Identifier: Apache-2.0

// Package tuntest holds the contract test of tun.Device, and a device in memory for tests.
//
// Not for other programs: it may change without notice.
package tuntest

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/protocol/offload"
)

// patience bounds every wait of the contract: far beyond what a loaded machine needs.
const patience = 20 * time.Second

// Subject is a new device with an MTU of tun.DefaultMTU that is up and has address 10.99.0.1/24, and the host around
// it. Its functions fail the test on errors.
type Subject struct {
	Device tun.Device
	// Inject sends an IP packet from the host into the interface.
	Inject func(packet []byte)
	// Receive returns the next IP packet that the host gets from the interface.
	Receive func() []byte
	SetUp   func(up bool)
	SetMTU  func(mtu int)
	// Delete deletes the interface from outside.
	Delete func()
}

// Factory returns a Subject with the given number of queues for one test. It registers the cleanup.
type Factory func(t *testing.T, queues int) Subject

// RunContract tests the contract of tun.Device and tun.Queue.
func RunContract(t *testing.T, factory Factory) {
	for name, c := range map[string]struct {
		queues int
		test   func(*testing.T, Subject)
	}{
		"ReadReturnsHostPackets":           {1, readReturnsHostPackets},
		"ReadStopsAfterATrain":             {1, readStopsAfterATrain},
		"TryReadDoesNotWait":               {1, tryReadDoesNotWait},
		"ReadOrEnds":                       {1, readOrEnds},
		"PacketsWaitWhileReadingIsStopped": {2, packetsWaitWhileReadingIsStopped},
		"HostReceivesWrites":               {2, hostReceivesWrites},
		"WriteJoinsBuffers":                {1, writeJoinsBuffers},
		"WriteRejectsMalformedTrains":      {1, writeRejectsMalformedTrains},
		"EventsFollowTheState":             {1, eventsFollowTheState},
		"CloseWakesAllReaders":             {3, closeWakesAllReaders},
		"DeletionClosesTheDevice":          {2, deletionClosesTheDevice},
		"ReadsAndWritesWithoutAllocating":  {1, readsAndWritesWithoutAllocating},
	} {
		t.Run(name, func(t *testing.T) { c.test(t, factory(t, c.queues)) })
	}
}

// outbound returns a packet that the host sends.
func outbound(number, size int) []byte {
	local, remote := addresses()
	return makePacket(local, remote, uint16(number), size)
}

// inbound returns a train for the host, with an empty virtio-net header.
func inbound(number, size int) []byte {
	local, remote := addresses()
	return append(make([]byte, offload.VnetHdrLen), makePacket(remote, local, uint16(number), size)...)
}

func newBufs(n int) (bufs [][]byte, sizes []int) {
	for range n {
		bufs = append(bufs, make([]byte, tun.MaxTrain))
	}
	return bufs, make([]int, n)
}

func readReturnsHostPackets(t *testing.T, s Subject) {
	var sent [][]byte
	for i := range 100 {
		sent = append(sent, outbound(i, 28+13*i))
		s.Inject(sent[i])
	}
	bufs, sizes := newBufs(7)
	for got := 0; got < len(sent); {
		n, err := s.Device.Queues()[0].Read(bufs, sizes)
		if err != nil || n < 1 {
			t.Fatalf("Read = %d, %v", n, err)
		}
		for i := range n {
			if packet := bufs[i][offload.VnetHdrLen:sizes[i]]; !bytes.Equal(packet, sent[got]) {
				t.Fatalf("packet %d:\n% x, want\n% x", got, packet, sent[got])
			}
			got++
		}
	}
}

func readStopsAfterATrain(t *testing.T, s Subject) {
	s.SetMTU(9000)
	for i, size := range []int{100, 200, 5000, 300, 400} {
		s.Inject(outbound(i, size))
	}
	bufs, sizes := newBufs(16)
	for _, want := range []int{3, 2} {
		if n, err := s.Device.Queues()[0].Read(bufs, sizes); n != want || err != nil {
			t.Fatalf("Read = %d, %v; want %d trains", n, err, want)
		}
	}
}

// tryReadDoesNotWait also checks that TryRead stops where Read does, and that the two may be mixed.
func tryReadDoesNotWait(t *testing.T, s Subject) {
	s.SetMTU(9000)
	q := s.Device.Queues()[0]
	bufs, sizes := newBufs(16)
	for n := q.TryRead(bufs, sizes); n > 0; n = q.TryRead(bufs, sizes) { // packets that the kernel sends by itself
	}
	for i, size := range []int{5000, 100, 200, 5000, 300, 400} {
		s.Inject(outbound(i, size))
	}
	if n, err := q.Read(bufs, sizes); n != 1 || err != nil {
		t.Fatalf("Read = %d, %v; want a train", n, err)
	}
	for _, want := range []int{3, 2, 0, 0} {
		if n := q.TryRead(bufs, sizes); n != want {
			t.Fatalf("TryRead = %d, want %d trains", n, want)
		}
	}
	s.Inject(outbound(9, 100))
	if n, err := q.Read(bufs, sizes); n != 1 || err != nil || sizes[0] != offload.VnetHdrLen+100 {
		t.Fatalf("Read = %d, %v; want one train", n, err)
	}
	if n := q.TryRead(nil, nil); n != 0 {
		t.Errorf("TryRead into nothing = %d", n)
	}
}

// readOrEnds waits for a descriptor that is writable, for negative ones, for a train, and for the end of the device.
func readOrEnds(t *testing.T, s Subject) {
	q := s.Device.Queues()[0]
	bufs, sizes := newBufs(1)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	for _, fds := range [][]int32{{-1, int32(w.Fd())}, {-1}, nil} {
		for n, err := 1, error(nil); n > 0; { // the kernel sends packets by itself
			if n, err = q.ReadOr(bufs, sizes, fds); err != nil {
				t.Fatalf("ReadOr(%v): %v", fds, err)
			}
		}
	}
	s.Inject(outbound(9, 100))
	for sizes[0] != offload.VnetHdrLen+100 {
		if _, err := q.ReadOr(bufs, sizes, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Device.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.ReadOr(bufs, sizes, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("ReadOr of a closed device: %v", err)
	}
}

// packetsWaitWhileReadingIsStopped stops twice, once before anybody reads.
func packetsWaitWhileReadingIsStopped(t *testing.T, s Subject) {
	bufs, sizes := newBufs(1)
	for i := range 2 {
		errs := startReaders(s.Device)
		if err := errors.Join(s.Device.StopReading(), s.Device.StopReading()); err != nil {
			t.Fatal(err)
		}
		awaitClosed(t, s.Device, errs)
		s.Inject(outbound(i, 100+i))
		for _, q := range s.Device.Queues() {
			if n := q.TryRead(bufs, sizes); n != 0 {
				t.Fatalf("TryRead = %d after StopReading", n)
			}
			if err := q.Write([][]byte{inbound(i, 100)}); errors.Is(err, os.ErrClosed) {
				t.Error("Write fails after StopReading")
			}
		}
		if err := errors.Join(s.Device.ResumeReading(), s.Device.ResumeReading()); err != nil {
			t.Fatal(err)
		}
		for sizes[0] != offload.VnetHdrLen+100+i { // the kernel sends packets by itself
			readAny(t, s.Device, bufs, sizes)
		}
	}
	if err := s.Device.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Device.ResumeReading(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("ResumeReading of a closed device: %v", err)
	}
}

// readAny reads one train from any queue.
func readAny(t *testing.T, d tun.Device, bufs [][]byte, sizes []int) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		for _, q := range d.Queues() {
			n, err := q.ReadOr(bufs, sizes, []int32{-1})
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				return
			}
		}
	}
	t.Fatal("no queue has a train")
}

func hostReceivesWrites(t *testing.T, s Subject) {
	for i, q := range s.Device.Queues() {
		for _, size := range []int{28, 29, 1400} {
			train := inbound(i, size)
			if err := q.Write([][]byte{train}); err != nil {
				t.Fatal(err)
			}
			if got := s.Receive(); !bytes.Equal(got, train[offload.VnetHdrLen:]) {
				t.Fatalf("queue %d: the host got\n% x, want\n% x", i, got, train[offload.VnetHdrLen:])
			}
		}
	}
}

func writeJoinsBuffers(t *testing.T, s Subject) {
	train := inbound(1, 1300)
	for name, cuts := range map[string][]int{
		"header apart":         {offload.VnetHdrLen},
		"header and IP header": {offload.VnetHdrLen + headers},
		"empty buffers":        {offload.VnetHdrLen, offload.VnetHdrLen, 500, 500, 1310},
		"as many as allowed":   manyCuts(tun.MaxBuffers - 1),
	} {
		buffers, from := [][]byte{}, 0
		for _, cut := range cuts {
			buffers = append(buffers, train[from:cut])
			from = cut
		}
		buffers = append(buffers, train[from:])
		if err := s.Device.Queues()[0].Write(buffers); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := s.Receive(); !bytes.Equal(got, train[offload.VnetHdrLen:]) {
			t.Errorf("%s: the host got % x", name, got)
		}
	}
}

func manyCuts(n int) (cuts []int) {
	for i := range n {
		cuts = append(cuts, offload.VnetHdrLen+i)
	}
	return cuts
}

func writeRejectsMalformedTrains(t *testing.T, s Subject) {
	q := s.Device.Queues()[0]
	malformed := inbound(1, 100)
	malformed[offload.VnetHdrLen] = 0xf5
	for name, buffers := range map[string][][]byte{
		"nothing":                  nil,
		"empty buffers":            {{}, {}},
		"half a virtio-net header": {make([]byte, 5)},
		"no packet":                {make([]byte, offload.VnetHdrLen)},
		"neither IPv4 nor IPv6":    {malformed},
	} {
		if err := q.Write(buffers); err == nil || errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := q.Write(make([][]byte, tun.MaxBuffers+1)); !errors.Is(err, tun.ErrTooManyBuffers) {
		t.Errorf("too many buffers: %v", err)
	}
	s.SetUp(false)
	if err := q.Write([][]byte{inbound(1, 100)}); err == nil || errors.Is(err, os.ErrClosed) {
		t.Errorf("down: %v", err)
	}
	s.SetUp(true)
	train := inbound(2, 100)
	if err := q.Write([][]byte{train}); err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	if got := s.Receive(); !bytes.Equal(got, train[offload.VnetHdrLen:]) {
		t.Errorf("the host got % x", got)
	}
}

// awaitEvent reads events until the wanted one.
func awaitEvent(t *testing.T, d tun.Device, want tun.Event) {
	t.Helper()
	var last tun.Event
	for deadline := time.After(patience); ; {
		select {
		case e, ok := <-d.Events():
			if !ok {
				t.Fatalf("events ended at %+v, want %+v", last, want)
			}
			if last = e; e == want {
				return
			}
		case <-deadline:
			t.Fatalf("the last event was %+v, want %+v", last, want)
		}
	}
}

func eventsFollowTheState(t *testing.T, s Subject) {
	awaitEvent(t, s.Device, tun.Event{Up: true, MTU: tun.DefaultMTU})
	for _, mtu := range []int{1280, 9000, 1400} { // with nobody reading: only the last one counts
		s.SetMTU(mtu)
	}
	awaitEvent(t, s.Device, tun.Event{Up: true, MTU: 1400})
	s.SetUp(false)
	awaitEvent(t, s.Device, tun.Event{MTU: 1400})
	s.SetUp(true)
	awaitEvent(t, s.Device, tun.Event{Up: true, MTU: 1400})
	if err := s.Device.Close(); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, s.Device)
}

// awaitEnd waits for the end of the events.
func awaitEnd(t *testing.T, d tun.Device) {
	t.Helper()
	for deadline := time.After(patience); ; {
		select {
		case _, ok := <-d.Events():
			if !ok {
				return
			}
		case <-deadline:
			t.Fatal("the events did not end")
		}
	}
}

// startReaders reads each queue until an error, and returns the channel of errors.
func startReaders(d tun.Device) <-chan error {
	errs := make(chan error)
	for _, q := range d.Queues() {
		entering := make(chan struct{})
		go func() {
			bufs, sizes := newBufs(2)
			close(entering)
			for {
				if _, err := q.Read(bufs, sizes); err != nil {
					errs <- err
					return
				}
			}
		}()
		<-entering
	}
	return errs
}

// awaitClosed wants os.ErrClosed of every reader.
func awaitClosed(t *testing.T, d tun.Device, errs <-chan error) {
	t.Helper()
	deadline := time.After(patience)
	for range d.Queues() {
		select {
		case err := <-errs:
			if !errors.Is(err, os.ErrClosed) {
				t.Errorf("Read returned %v, want os.ErrClosed", err)
			}
		case <-deadline:
			t.Fatal("a Read still blocks")
		}
	}
}

func closeWakesAllReaders(t *testing.T, s Subject) {
	errs := startReaders(s.Device)
	for range 2 {
		if err := s.Device.Close(); err != nil {
			t.Fatal(err)
		}
	}
	awaitClosed(t, s.Device, errs)
	wantClosed(t, s.Device)
}

func deletionClosesTheDevice(t *testing.T, s Subject) {
	errs := startReaders(s.Device)
	s.Delete()
	awaitClosed(t, s.Device, errs)
	awaitEnd(t, s.Device)
	wantClosed(t, s.Device)
	if err := s.Device.Close(); err != nil {
		t.Error(err)
	}
}

func wantClosed(t *testing.T, d tun.Device) {
	t.Helper()
	bufs, sizes := newBufs(1)
	for i, q := range d.Queues() {
		if n, err := q.Read(bufs, sizes); n != 0 || !errors.Is(err, os.ErrClosed) {
			t.Errorf("queue %d: Read = %d, %v", i, n, err)
		}
		if err := q.Write([][]byte{inbound(1, 100)}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("queue %d: Write: %v", i, err)
		}
	}
}

func readsAndWritesWithoutAllocating(t *testing.T, s Subject) {
	const rounds = 50
	q := s.Device.Queues()[0]
	bufs, sizes := newBufs(1)
	allocs := least(func() float64 {
		for i := range rounds + 1 {
			s.Inject(outbound(i, 1000))
		}
		return testing.AllocsPerRun(rounds, func() {
			if n, err := q.Read(bufs, sizes); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		})
	})
	if allocs != 0 {
		t.Errorf("Read allocates %v times", allocs)
	}
	train := inbound(1, 1000)
	buffers := [][]byte{train[:38], train[38:500], train[500:]}
	for range rounds { // fill the buffers that are reused
		if err := q.Write(buffers); err != nil {
			t.Fatal(err)
		}
	}
	allocs = least(func() float64 {
		for range rounds {
			s.Receive()
		}
		return testing.AllocsPerRun(rounds-1, func() { _ = q.Write(buffers) })
	})
	if allocs != 0 {
		t.Errorf("Write allocates %v times", allocs)
	}
}

// least returns the smallest of at most ten measurements: the monitor in the same process may allocate meanwhile.
func least(measure func() float64) float64 {
	allocs := measure()
	for range 9 {
		if allocs == 0 {
			break
		}
		allocs = min(allocs, measure())
	}
	return allocs
}

// Prefix is the address that the factory must assign to the interface.
func Prefix() netip.Prefix {
	local, _ := addresses()
	return netip.PrefixFrom(local, 24)
}
