// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// connPair returns both ends of a connection.
func connPair(t *testing.T) (a, b Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	one, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { one.Close(); other.Close() })
	return Conn{one.(*net.UnixConn)}, Conn{other.(*net.UnixConn)}
}

func TestDescriptorsArriveInOrder(t *testing.T) {
	for _, n := range []int{1, maxFDsPerMessage, maxFDsPerMessage + 1, 2*maxFDsPerMessage + 7} {
		a, b := connPair(t)
		var fds []int
		for range n {
			fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
			if err != nil {
				t.Skip("needs descriptors: ", err)
			}
			fds = append(fds, fd)
			var b [8]byte
			binary.NativeEndian.PutUint64(b[:], uint64(len(fds)))
			if _, err := unix.Write(fd, b[:]); err != nil {
				t.Fatal(err)
			}
		}
		sent := make(chan error, 1)
		go func() { sent <- a.sendFDs(fds) }()
		got, err := b.receiveFDs(time.Minute)
		if err := errors.Join(err, <-sent, closeAll(fds)); err != nil || len(got) != n {
			t.Fatalf("%d of %d: %v", len(got), n, err)
		}
		for i, fd := range got {
			var b [8]byte
			if _, err := unix.Read(fd, b[:]); err != nil || binary.NativeEndian.Uint64(b[:]) != uint64(i+1) {
				t.Fatalf("descriptor %d of %d is out of order: %v", i, n, err)
			}
		}
		if err := closeAll(got); err != nil {
			t.Error(err)
		}
	}
}

func TestInvalidOffersAreRefused(t *testing.T) {
	for offer, want := range map[string]error{
		magic + "\x00\x00\x00\x09": ErrVersion,
		"nonsense....":             errMalformed,
		"errno=-71\n\n":            unix.EPROTO,
		"errno=-16\n\n":            unix.EBUSY,
	} {
		a, b := connPair(t)
		if _, err := a.Write([]byte(offer)); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if err := b.readOffer(); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", offer, err, want)
		}
	}
	a, b := connPair(t)
	if err := errors.Join(a.Offer(), b.readOffer()); err != nil {
		t.Error(err)
	}
	a.Close()
	if err := b.Await(Ready, time.Minute); !IsClosed(err) {
		t.Errorf("after the end of the connection: %v", err)
	}
}

// TestRefusalIsReadFromOpenConnection has refusals shorter than an offer. The daemon does not close the connection after them.
func TestRefusalIsReadFromOpenConnection(t *testing.T) {
	for _, refusal := range []string{"errno=-1\n\n", "errno=-16\n\n", "errno=-95\n\n"} {
		a, b := connPair(t)
		if _, err := a.Write([]byte(refusal)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, offerSize)
		n, err := b.fillOffer(buf) // without a deadline
		if err != nil || n < len(refusal)-1 {
			t.Errorf("%q: got %q, error %v, want no error", refusal, buf[:n], err)
		}
	}
}

func TestCanceledContextEndsRequestSnapshot(t *testing.T) {
	_, b := connPair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.RequestSnapshot(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
