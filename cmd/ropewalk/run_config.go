// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// readConfig returns the configuration with which the tunnel starts, from --config. The file may
// not exist yet: the program that writes it also configures the running tunnel.
func (o *runOptions) readConfig(ctx context.Context, log *slog.Logger) (config.Device, error) {
	if o.config == "" {
		return config.Device{}, nil
	}
	f, err := conffile.Load(o.config, conffile.Daemon)
	if errors.Is(err, fs.ErrNotExist) {
		log.Warn("configuration file does not exist, the tunnel carries nothing until it is configured", "file", o.config)
		return config.Device{}, nil
	}
	if err != nil {
		return config.Device{}, withHint(quickKeyHint(err))
	}
	for _, warning := range slices.Concat(f.Warnings, f.CheckSettings()) {
		log.Warn("configuration file is valid, but most likely has a mistake", "file", o.config, "warning", warning)
	}
	dev, err := f.Device(ctx, o.resolve)
	dev.Settings = f.Interface.Settings
	return dev, err
}
