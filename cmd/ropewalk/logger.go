// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// logOptions are the flags for the log level and format.
type logOptions struct{ level, format string }

// textFormat is the default log format.
const textFormat = "text"

func logFormats() []string { return []string{textFormat, "json"} }

func (o *logOptions) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.level, "log-level", "", "log level: debug, info, warn, error or silent (default: LOG_LEVEL, else info)")
	cmd.Flags().StringVar(&o.format, "log-format", textFormat, "log format: text or json")
	completeFlag(cmd, "log-level", uapi.Levels()...)
	completeFlag(cmd, "log-format", logFormats()...)
}

// args returns o as arguments of `ropewalk run`. An empty level adds none, since run inherits LOG_LEVEL.
func (o *logOptions) args() ([]string, error) {
	if _, _, err := o.open(io.Discard); err != nil {
		return nil, err
	}
	var args []string
	if !strings.EqualFold(o.format, textFormat) {
		args = append(args, "--log-format", o.format)
	}
	if o.level != "" {
		args = append(args, "--log-level", o.level)
	}
	return args, nil
}

// open returns a logger that writes to w, and its level, which may be changed at any time. It does not
// read LOG_LEVEL: callers that follow it pass it through knownLevel.
func (o *logOptions) open(w io.Writer) (*slog.Logger, *slog.LevelVar, error) {
	level := new(slog.LevelVar)
	if o.level != "" {
		l, err := uapi.ParseLevel(o.level)
		if err != nil {
			return nil, nil, fmt.Errorf("%w%s", err, didYouMean(o.level, uapi.Levels()))
		}
		level.Set(l)
	}
	options := &slog.HandlerOptions{Level: level}
	switch strings.ToLower(o.format) {
	case "", textFormat:
		return slog.New(slog.NewTextHandler(w, options)), level, nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), level, nil
	}
	return nil, nil, fmt.Errorf("--log-format %.20q: want %s", o.format, strings.Join(logFormats(), " or "))
}

// newLogger returns a logger in text format.
func newLogger(w io.Writer, level string) (*slog.Logger, error) {
	log, _, err := (&logOptions{level: level}).open(w)
	return log, err
}

// knownLevel returns level, or "" if it is unknown: other programs use LOG_LEVEL too, with other values.
func knownLevel(level string) string {
	if _, err := uapi.ParseLevel(level); err != nil {
		return ""
	}
	return level
}
