// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/lab/traffic"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// The names of the two measurements.
const (
	spreadOff = "spread off"
	spreadOn  = "spread on"
)

// setSpread sets the spread mode of both ends. It fails if a daemon does not support spread.
func (d *demo) setSpread(mode config.SpreadMode) error {
	for _, s := range []*Side{d.left, d.right} {
		c, err := uapi.Dial(s.Interface)
		if err != nil {
			return err
		}
		err = c.Configure(config.Device{Settings: config.Settings{Spread: &mode}})
		c.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// startSpread sets Spread = auto at both ends and waits until both spread. To replace the peers removes their sessions, so that hellos
// follow. After spreadTimeout it returns the reason why an end does not spread.
func (d *demo) startSpread(ctx context.Context, server *traffic.Server) error {
	err := errors.Join(d.setSpread(config.SpreadAuto), d.left.configure(d.right), d.right.configure(d.left))
	if err != nil {
		return err
	}
	deadline := time.Now().Add(spreadTimeout)
	for {
		d.live.step("waiting for hellos")
		if _, err := d.connect(ctx, server); err != nil { // takes a moment, so the loop needs no pause
			return err
		}
		err := errors.Join(d.left.notSpreading(d.right), d.right.notSpreading(d.left))
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// notSpreading returns nil if s spreads to its peer, otherwise the reason.
func (s *Side) notSpreading(peer *Side) error {
	st, err := s.stats()
	switch {
	case err != nil:
		return err
	case st == nil || st.Spread == nil:
		return fmt.Errorf("the daemon on %s reports no spread state", s.Name)
	}
	if p := st.Spread.Peers[peer.Key.Public().Base64()]; !p.Active {
		return fmt.Errorf("%s does not spread to %s: %s", s.Name, peer.Name, p.Reason)
	}
	return nil
}
