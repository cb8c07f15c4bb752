// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"
	"time"
)

func TestWarmupAndTransmittedBytesAreReported(t *testing.T) {
	s := startServer(t)
	res, err := Run(t.Context(), Config{
		Kind: TCP, Server: s.Addr(), Streams: 2, Congestion: "reno", Duration: 300 * time.Millisecond, Warmup: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, st := range res.Streams {
		if st.WarmupBytes == 0 || st.WarmupBytes >= st.Bytes || st.TransmittedBytes < st.Bytes {
			t.Errorf("stream %d: %+v", i, st)
		}
	}
	if res.Retransmitted < 0 || res.Retransmitted >= 1 || res.BitsPerSecond == 0 {
		t.Errorf("%+v", res)
	}
}

func TestSumsLeaveOutWarmup(t *testing.T) {
	r := Result{Streams: []Stream{
		{Counts: Counts{Bytes: 300}, Seconds: 1, WarmupBytes: 100, TransmittedBytes: 380, RetransmittedBytes: 80},
		{Counts: Counts{Bytes: 100}, Seconds: 2, WarmupBytes: 20, TransmittedBytes: 120, RetransmittedBytes: 20},
	}}
	r.sum()
	if r.Bytes != 400 || r.BitsPerSecond != 280*8/2 || r.Retransmitted != 0.2 {
		t.Errorf("%d bytes, %v bit/s, %v retransmitted", r.Bytes, r.BitsPerSecond, r.Retransmitted)
	}
}

func TestRunRejectsUnknownCongestionControl(t *testing.T) {
	s := startServer(t)
	if _, err := Run(t.Context(), Config{Kind: TCP, Server: s.Addr(), Congestion: "none-such"}); err == nil {
		t.Error("no error")
	}
	if _, err := Run(t.Context(), Config{Kind: TCP, Server: s.Addr(), Warmup: time.Second}); err == nil {
		t.Error("no error for a warm-up as long as the run")
	}
}
