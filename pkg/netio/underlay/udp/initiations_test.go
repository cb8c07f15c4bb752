// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/test/expect"
)

// TestFilterDropsOnlyTrainsOfInitiations sends traffic like that of a flood, of handshaking peers, and of data. It uses
// the loopback, which keeps the order while the sender stays on its CPU.
func TestFilterDropsOnlyTrainsOfInitiations(t *testing.T) {
	for name, ipv6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		t.Run(name, func(t *testing.T) {
			enterNamespace(t)
			runOn(t, allowedCPUs(t)[0])
			from, at := open(t, Config{}), open(t, Config{})
			if f := from.Features(); !f.GSO || !at.Features().GRO || ipv6 && !f.IPv6 {
				t.Skipf("no trains on this kernel: %+v", f)
			}
			to := loopback(at, ipv6)
			message := func(kind byte, size int) []byte { return append([]byte{kind, 0, 0, 0}, make([]byte, size-4)...) }
			run := func(kind byte, size, segments int) underlay.Run {
				return underlay.Run{
					To: &to, Parts: [][]byte{bytes.Repeat(message(kind, size), segments)}, SegSize: size, Segments: segments,
				}
			}
			behind := func(initiations int, kind byte, size int) underlay.Run {
				parts := [][]byte{bytes.Repeat(message(1, 148), initiations), message(kind, size)}
				return underlay.Run{To: &to, Parts: parts, SegSize: 148, Segments: initiations + 1}
			}
			runs := []underlay.Run{
				run(1, 148, 1), run(1, 148, 2), run(1, 148, 3), run(1, 148, 60), run(2, 92, 1), run(2, 92, 3), run(3, 64, 3), run(4, 148, 60),
				behind(1, 4, 96), behind(1, 4, 144), behind(1, 2, 148), behind(1, 1, 147), behind(40, 4, 96), behind(2, 1, 148), run(4, 32, 1),
			}
			if n := from.Lane(0).Send(runs); n > 0 {
				t.Fatalf("%d not sent: %v", n, runs[0].Err)
			}
			var got []int
			rx := []underlay.Datagrams{{Buf: make([]byte, 65535)}}
			expect.Eventually(t, "the last one arrives", func() bool {
				for at.Lane(0).TryRecv(rx) > 0 {
					got = append(got, rx[0].N)
				}
				return len(got) > 0 && got[len(got)-1] == 32
			})
			want := []int{148, 2 * 148, 92, 3 * 92, 3 * 64, 60 * 148, 148 + 96, 148 + 144, 2 * 148, 148 + 147, 40*148 + 96, 32}
			if len(got) != len(want) {
				t.Fatalf("received %v, want %v", got, want)
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("received %v, want %v", got, want)
				}
			}
		})
	}
}

// filtered is a socket with the filter. A datagram to it represents a UDP header and its payload, or a train.
type filtered struct{ in, out int }

func newFiltered(t *testing.T) *filtered {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) })
	s := &socket{fd: fds[1]}
	if err := s.attachInitiationFilter(); err != nil {
		t.Skip(err)
	}
	return &filtered{in: fds[0], out: fds[1]}
}

// takes reports whether the filter accepts the whole payload.
func (f *filtered) takes(t *testing.T, payload []byte) bool {
	t.Helper()
	datagram := append(make([]byte, udpHeader), payload...)
	if _, err := unix.Write(f.in, datagram); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<17)
	n, err := unix.Read(f.out, buf)
	if err == unix.EAGAIN {
		return false
	}
	if err != nil || !bytes.Equal(buf[:n], datagram) {
		t.Fatalf("%d of %d bytes came through, %v", n, len(datagram), err)
	}
	return true
}

// messagesOf returns concatenated messages of one size and type.
func messagesOf(count, size int, begin ...byte) []byte {
	return bytes.Repeat(append(slices.Clone(begin), make([]byte, size-len(begin))...), count)
}

func TestFilterDropsTrainsOfMoreThanTwoInitiations(t *testing.T) {
	f := newFiltered(t)
	for count := range 200 {
		if got := f.takes(t, messagesOf(count, initiationLen, 1, 0, 0, 0)); got != (count <= maxInitiationTrain) {
			t.Errorf("%d initiations: got accepted %v, want %v", count, got, (count <= maxInitiationTrain))
		}
	}
}

// TestFilterAcceptsPeerDataBehindForgedInitiations forges initiations from the peer's address and port, so fast that
// they are coalesced with its data. A train ends with the first shorter message.
func TestFilterAcceptsPeerDataBehindForgedInitiations(t *testing.T) {
	f := newFiltered(t)
	for count := range 200 {
		for _, own := range []int{32, 64, 92, 96, 112, 144} {
			train := append(messagesOf(count, initiationLen, 1, 0, 0, 0), messagesOf(1, own, 4)...)
			if !f.takes(t, train) {
				t.Errorf("the filter drops %d bytes behind %d initiations", own, count)
			}
		}
	}
}

// TestSingleDatagramCannotBlockCoalescedData puts a datagram that looks like initiations at each place of a train of
// data. An attacker who knows a peer's address and port can send it.
func TestSingleDatagramCannotBlockCoalescedData(t *testing.T) {
	f := newFiltered(t)
	for _, size := range []int{160, 448, 592, 1184, 1332, 1452, 1456, 8992} {
		for count := 2; count <= min(64, 65535/size); count++ {
			for place := range count {
				train := messagesOf(count, size, 4, 0, 0, 0)
				copy(train[place*size:], messagesOf(size/4, 4, 1))
				if !f.takes(t, train) {
					t.Errorf("the filter drops %d datagrams of %d bytes because of the one at %d", count, size, place)
				}
			}
		}
	}
}

// TestFilterSamplesWholeTrain replaces random messages of trains, and compares the filter with a model that samples the
// same places.
func TestFilterSamplesWholeTrain(t *testing.T) {
	f, rng := newFiltered(t), rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 20000 {
		count := 1 + rng.IntN(64)
		train := messagesOf(count, initiationLen, 1, 0, 0, 0)
		for range rng.IntN(3) {
			binary.BigEndian.PutUint32(train[rng.IntN(count)*initiationLen:], []uint32{0, 1, 0x01000001, 0x04000000}[rng.IntN(4)])
		}
		want := count <= maxInitiationTrain
		for _, place := range []int{0, count / 4, count * 2 / 4, count * 3 / 4, count - 1} {
			want = want || !bytes.HasPrefix(train[place*initiationLen:], []byte{1, 0, 0, 0})
		}
		if got := f.takes(t, train); got != want {
			t.Fatalf("%d messages: taken %v, want %v", count, got, want)
		}
		if !want {
			refused++
		}
	}
	if refused == 0 {
		t.Error("none was refused")
	}
}
