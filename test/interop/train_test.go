// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

const (
	trainSegment  = 1200
	trainSegments = 20
	trainLast     = 300 // bytes of the last, shorter segment
)

// sendTrain sends one UDP train (UDP_SEGMENT) from x to the sink of y and checks that its segments arrive in order as separate
// datagrams. UDP may lose packets, so an incomplete train is sent again with another number.
func sendTrain(t *testing.T, x, y *tunnel, v6 bool) {
	t.Helper()
	sink := listenUDP(t, y.host, sinkPort)
	defer sink.Close()
	out, err := dialUDP(x.host, netip.AddrPortFrom(y.inner(v6), sinkPort))
	expect.NoError(t, err)
	defer out.Close()
	expect.NoError(t, setSegment(out, trainSegment))
	deadline := time.Now().Add(patience)
	for number := uint32(1); ; number++ {
		train := makeTrain(number)
		_, err := out.Write(train)
		expect.NoError(t, err)
		err = receiveTrain(sink, train)
		switch {
		case err == nil:
			return
		case !errors.Is(err, errIncomplete) || time.Now().After(deadline):
			t.Fatalf("a train of %d segments from %s to %s: got error %v, want %v", trainSegments+1, x, y, err, errIncomplete)
		}
	}
}

// setSegment makes each Write a train of datagrams of the given size.
func setSegment(c *net.UDPConn, size int) error {
	return setOption(c, unix.SOL_UDP, unix.UDP_SEGMENT, size)
}

func setOption(c *net.UDPConn, level, option, value int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var sockErr error
	err = raw.Control(func(fd uintptr) { sockErr = unix.SetsockoptInt(int(fd), level, option, value) })
	return errors.Join(err, sockErr)
}

// makeTrain writes the train's number and the segment's number to the start of each segment.
func makeTrain(number uint32) []byte {
	train := pattern(trainSegments*trainSegment+trainLast, uint64(number))
	for i := 0; i*trainSegment < len(train); i++ {
		binary.BigEndian.PutUint32(train[i*trainSegment:], number)
		binary.BigEndian.PutUint32(train[i*trainSegment+4:], uint32(i))
	}
	return train
}

var errIncomplete = errors.New("not all segments arrived")

// receiveTrain reads datagrams until the train is complete. It skips datagrams of earlier trains.
func receiveTrain(c *net.UDPConn, train []byte) error {
	buf := make([]byte, 65535)
	for rest, last := train, -1; len(rest) > 0; {
		_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, err := c.Read(buf)
		if err != nil {
			return errIncomplete
		}
		want := rest[:min(trainSegment, len(rest))]
		if n < 8 {
			return fmt.Errorf("a datagram of %d bytes", n)
		}
		if !bytes.Equal(buf[:4], train[:4]) {
			continue
		}
		i := int(binary.BigEndian.Uint32(buf[4:]))
		switch {
		case i <= last:
			return fmt.Errorf("segment %d after segment %d", i, last)
		case i > last+1:
			return errIncomplete
		case !bytes.Equal(buf[:n], want):
			return fmt.Errorf("segment %d differs: got %d bytes, want %d", i, n, len(want))
		}
		rest, last = rest[len(want):], i
	}
	return nil
}
