// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/lane"
	"github.com/ropewalk/ropewalk/pkg/dataplane/internal/send"
)

// What package device uses of the lanes.
type (
	Clock          = lane.Clock
	Control        = lane.Control
	ControlMessage = send.ControlMessage
	FlowStats      = lane.FlowStats
	LaneStats      = lane.LaneStats
	OrderStats     = lane.OrderStats
	Peer           = lane.Peer
	PeerPackets    = lane.PeerPackets
	PeerTraffic    = lane.PeerTraffic
	Progress       = lane.Progress
	RunSizes       = lane.RunSizes
	Session        = lane.Session
	SlowPath       = lane.SlowPath
	Spray          = lane.Spray
	Spread         = lane.Spread
	Stats          = lane.Stats
)

// NewClock is lane.NewClock.
func NewClock() Clock { return lane.NewClock() }

// BootClock is lane.BootClock.
func BootClock() Clock { return lane.BootClock() }

// NewSpread is lane.NewSpread.
func NewSpread(sources []uint8) *Spread { return lane.NewSpread(sources) }
