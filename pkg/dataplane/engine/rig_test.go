// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"crypto/rand"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane/lanetest"
	"github.com/ropewalk/ropewalk/pkg/netio/tun"
	"github.com/ropewalk/ropewalk/pkg/netio/tun/tuntest"
)

// engineRig is an engine of one lane with one peer.
type engineRig struct {
	*lanetest.Rig
	engine *Engine
}

func newEngineRig(tb testing.TB) *engineRig {
	tb.Helper()
	device := tuntest.NewFake(tuntest.FakeConfig{Depth: 64, Features: tun.Features{TSO: true, USO: true}})
	e := New(Config{Device: device, Control: &lanetest.Control{}, Clock: NewClock(), Rand: rand.Reader})
	r := &engineRig{lanetest.NewOf(tb, e.shared, device), e}
	r.Now = e.shared.Clock()
	return r
}
