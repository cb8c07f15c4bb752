// SPDX-License-Identifier: Apache-2.0

package receive

import (
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device/devicetest/flow"
)

func TestReceiverYieldsToReceiversOfDatagrams(t *testing.T) {
	r, yields := newRig(t), false
	r.rx.load.Yield = func(y bool) { yields = y }
	lanetest.EachLoad(t, [2]flow.Ends{lanetest.In4, lanetest.In6}, func(train []byte) {
		run, size := r.Seal(lanetest.PacketsOf(t, train)...)
		r.Receive(run, size)
		r.Delivered()
	}, func() {
		r.Now += 2 * int64(10*time.Millisecond)
		r.rx.batch(0)
	}, &yields)
}
