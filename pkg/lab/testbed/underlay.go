// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// SetUnderlay makes both daemons, which are ropewalk's, carry data messages by UDP or AF_XDP sockets, and returns the report of A when they do.
func (l *Lab) SetUnderlay(ctx context.Context, mode config.UnderlayMode) (config.UnderlayReport, error) {
	if _, err := l.B.setUnderlay(ctx, mode); err != nil {
		return config.UnderlayReport{}, err
	}
	return l.A.setUnderlay(ctx, mode)
}

// underlayLimit is how long a change of the underlay may take: some drivers lose the link for seconds when a program is attached.
const underlayLimit = 15 * time.Second

func (s *Side) setUnderlay(ctx context.Context, mode config.UnderlayMode) (config.UnderlayReport, error) {
	var r config.UnderlayReport
	c, err := uapi.Dial(s.Iface)
	if err != nil {
		return r, err
	}
	defer c.Close()
	if err := c.Configure(config.Device{Settings: config.Settings{Underlay: &mode}}); err != nil {
		return r, fmt.Errorf("setting the underlay of %s: %w", s.Iface, err)
	}
	ctx, cancel := context.WithTimeout(ctx, underlayLimit)
	defer cancel()
	err = s.Await(ctx, func() error {
		var stats struct {
			Path config.UnderlayReport `json:"path"`
		}
		if err := c.Stats(&stats); err != nil {
			return err
		}
		if r = stats.Path; r.Mode != mode || r.Path != mode {
			return errors.New(r.Reason)
		}
		return nil
	})
	if err != nil {
		return r, fmt.Errorf("using underlay %v: %w", mode, err)
	}
	return r, nil
}
