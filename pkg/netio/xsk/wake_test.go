// SPDX-License-Identifier: Apache-2.0

package xsk

import (
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// submit queues n frames.
func submit(t *testing.T, s *Socket, n int) {
	t.Helper()
	batch := make([]Desc, n)
	if got := s.Submit(batch[:s.Reserve(batch)]); got != n {
		t.Fatalf("submitted %d of %d", got, n)
	}
}

func TestWakeTxRepeatsUntilAllIsSent(t *testing.T) {
	tests := []struct {
		name string
		send func(f *fakeKernel, call int) unix.Errno
	}{
		{"in batches", func(f *fakeKernel, _ int) unix.Errno {
			f.transmit(32)
			if f.tx.empty() {
				return 0
			}
			return unix.EAGAIN
		}},
		{"with a dropped frame each", func(f *fakeKernel, _ int) unix.Errno {
			f.transmit(1)
			return unix.EBUSY
		}},
		{"with rests", func(f *fakeKernel, call int) unix.Errno {
			if call%2 == 0 {
				f.transmit(10)
			}
			return unix.EAGAIN
		}},
		{"out of memory once", func(f *fakeKernel, call int) unix.Errno {
			if call == 1 {
				return unix.ENOBUFS
			}
			f.transmit(64)
			return 0
		}},
		// 16 at a time, visible only at the end (Linux 5.10)
		{"unseen", func(f *fakeKernel, call int) unix.Errno {
			if call < 5 {
				return unix.EAGAIN
			}
			f.transmit(64)
			return 0
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			s := openFake(t, f, Config{})
			calls := 0
			f.onSend = func() unix.Errno { calls++; return test.send(f, calls) }
			submit(t, s, 64)
			if err := s.WakeTx(); err != nil || s.Pending() != 0 || len(f.sent) != 64 {
				t.Errorf("%v, %d pending, %d sent after %d calls", err, s.Pending(), len(f.sent), calls)
			}
		})
	}
}

func TestWakeTxStopsWhenDeviceTakesNothing(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	calls := 0
	f.onSend = func() unix.Errno { calls++; return unix.EAGAIN }
	submit(t, s, 64)
	if err := s.WakeTx(); err != nil || s.Pending() != 64 || calls > 10 {
		t.Errorf("%v, %d pending after %d calls", err, s.Pending(), calls)
	}
}

func TestWakeTxCountsDeviceDrops(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	f.onSend = func() unix.Errno { f.transmit(1); return unix.EBUSY }
	submit(t, s, 5)
	if err := s.WakeTx(); err != nil {
		t.Fatal(err)
	}
	if stats, _ := s.Stats(); stats.TxRefused != 5 || stats.Sent != 5 {
		t.Errorf("got %+v, want TxRefused 5, Sent 5", stats)
	}
}

func TestWakeTxWithoutFramesMakesNoCall(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	f.onSend = func() unix.Errno { t.Error("called"); return 0 }
	if err := s.WakeTx(); err != nil {
		t.Error(err)
	}
	submit(t, s, 1)
	f.tx.flags.Store(0) // the kernel is awake
	if err := s.WakeTx(); err != nil {
		t.Error(err)
	}
}

// TestWakeTxCompletesZeroCopyFrames: drivers reclaim what they sent when they are woken.
func TestWakeTxCompletesZeroCopyFrames(t *testing.T) {
	f := newFake(t)
	f.zc = true
	s := openFake(t, f, Config{})
	calls := 0
	f.onSend = func() unix.Errno {
		calls++
		for !f.tx.empty() {
			f.tx.pop() // taken, but not completed
		}
		return unix.EAGAIN
	}
	submit(t, s, 3)
	for range 2 {
		if err := s.WakeTx(); err != nil {
			t.Error(err)
		}
	}
	if calls != 2 {
		t.Errorf("got %d calls, want 2", calls)
	}
}

func TestKickTxRepeatsWhileFramesLeave(t *testing.T) {
	const frames = 64
	for name, c := range map[string]struct {
		send       func(f *fakeKernel) unix.Errno
		left, most int // frames still pending, and calls, at most
		refused    uint64
		err        error
	}{
		"taken in batches": {func(f *fakeKernel) unix.Errno {
			f.transmit(minTxBatch)
			if f.tx.empty() {
				return 0
			}
			return unix.EAGAIN
		}, 0, frames / minTxBatch, 0, nil},
		"nothing taken":    {func(*fakeKernel) unix.Errno { return unix.EAGAIN }, frames, 1, 0, nil},
		"dropped one each": {func(f *fakeKernel) unix.Errno { f.transmit(1); return unix.EBUSY }, frames - 5, 5, 5, nil},
		"down":             {func(*fakeKernel) unix.Errno { return unix.ENETDOWN }, frames, 1, 0, ErrDown},
		"deleted":          {func(*fakeKernel) unix.Errno { return unix.ENXIO }, frames, 1, 0, ErrGone},
		"silent":           {func(*fakeKernel) unix.Errno { return 0 }, frames, 1, 0, nil}, // only the sender can detect it
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			s := openFake(t, f, Config{})
			calls := 0
			f.onSend = func() unix.Errno { calls++; return c.send(f) }
			submit(t, s, frames)
			if err := s.KickTx(); !errors.Is(err, c.err) || s.Pending() != c.left || calls > c.most {
				t.Errorf("%v, %d pending after %d calls", err, s.Pending(), calls)
			}
			if stats, _ := s.Stats(); stats.TxRefused != c.refused {
				t.Errorf("got %+v, want TxRefused %v", stats, c.refused)
			}
		})
	}
}

func TestKickTxWithoutFramesMakesNoCall(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	f.onSend = func() unix.Errno { t.Error("called"); return 0 }
	if err := s.KickTx(); err != nil {
		t.Error(err)
	}
}

func TestWakeRxCallsOnlySleepingKernel(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	calls := 0
	f.onRecv = func() unix.Errno { calls++; return 0 }
	_ = s.WakeRx()
	f.fill.flags.Store(flagNeedWakeup)
	_ = s.WakeRx()
	f.fill.flags.Store(0)
	_ = s.WakeRx()
	if calls != 1 {
		t.Errorf("got %d calls, want 1", calls)
	}
	f.onRecv = func() unix.Errno { return unix.EAGAIN }
	f.fill.flags.Store(flagNeedWakeup)
	if err := s.WakeRx(); err != nil {
		t.Errorf("a busy kernel: got error %v, want none", err)
	}
}

func TestDeviceStatesReturnDistinctErrors(t *testing.T) {
	tests := []struct {
		errno unix.Errno
		zc    bool
		want  error
	}{
		{unix.ENETDOWN, false, ErrDown},
		{unix.ENETDOWN, true, ErrDown},
		{unix.ENXIO, false, ErrGone},
		{unix.ENXIO, true, ErrGone},
		{unix.EINVAL, true, ErrQueueGone},
		{0, false, ErrQueueGone}, // in copy mode the kernel sends nothing and returns no error
		{unix.EPERM, false, os.ErrPermission},
	}
	for _, test := range tests {
		f := newFake(t)
		f.zc = test.zc
		s := openFake(t, f, Config{})
		f.onSend = func() unix.Errno { return test.errno }
		f.onRecv = f.onSend
		f.fill.flags.Store(flagNeedWakeup)
		submit(t, s, 1)
		if err := s.WakeTx(); !errors.Is(err, test.want) {
			t.Errorf("%v: WakeTx gives %v", test.errno, err)
		}
		if test.errno == 0 {
			continue
		}
		if err := s.WakeRx(); !errors.Is(err, test.want) {
			t.Errorf("%v: WakeRx gives %v", test.errno, err)
		}
		if err := s.Check(); !errors.Is(err, test.want) {
			t.Errorf("%v: Check gives %v", test.errno, err)
		}
	}
}

func TestCheckFallsBackToSendto(t *testing.T) {
	f := newFake(t)
	s := openFake(t, f, Config{})
	f.onRecv = func() unix.Errno { return unix.EOPNOTSUPP } // before Linux 5.11
	f.onSend = func() unix.Errno { return unix.ENETDOWN }
	if err := s.Check(); !errors.Is(err, ErrDown) {
		t.Error(err)
	}
	f.onSend = func() unix.Errno { return unix.EAGAIN }
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}

func TestUnknownErrnoIsWrapped(t *testing.T) {
	if err := stateError("sendto", unix.EIO); !errors.Is(err, unix.EIO) || errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
