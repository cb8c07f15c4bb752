// SPDX-License-Identifier: Apache-2.0

package xsk

import "testing"

func TestFrameSizeFollowsMTU(t *testing.T) {
	for mtu, want := range map[int]int{
		68: 2048, 1500: 2048, 2048 - RxHeadroom - ethernetHeader: 2048, 2048 - RxHeadroom - ethernetHeader + 1: 4096,
		4096 - RxHeadroom - ethernetHeader: 4096, 4096 - RxHeadroom - ethernetHeader + 1: 0, 9000: 0, 65536: 0,
	} {
		if got := FrameSizeFor(mtu); got != want {
			t.Errorf("MTU %d: frames of %d, want %d", mtu, got, want)
		}
	}
}
