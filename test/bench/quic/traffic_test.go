// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"testing"
	"time"
)

func TestTrafficIsCountedInBothDirections(t *testing.T) {
	probe, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := probe.LocalAddr().String()
	_ = probe.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- serve(ctx, address) }()
	for _, reverse := range []bool{false, true} {
		r, err := request(ctx, address, order{Reverse: reverse, Duration: 100 * time.Millisecond})
		if err != nil || r.Bytes == 0 || r.BitsPerSecond == 0 {
			t.Errorf("reverse %t: %+v, %v", reverse, r, err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
