// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

func newLogCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "log INTERFACE [LEVEL]",
		Short: "Show or change the log level of a running daemon",
		Long: "log changes the log level of the interface's daemon until the daemon ends. Levels: " + strings.Join(uapi.Levels(), ", ") + ".\n" +
			"Without a level it prints the current one. Level debug logs every handshake; level info logs a peer's first handshake,\n" +
			"changes of its endpoint, and when it becomes unreachable.",
		Example:           "  ropewalk log wg0 debug\n  ropewalk log wg0",
		Args:              usageArgs(cobra.RangeArgs(1, 2)),
		ValidArgsFunction: completeLog,
		RunE: func(cmd *cobra.Command, args []string) error {
			level := ""
			if len(args) == 2 {
				level = args[1]
				if _, err := uapi.ParseLevel(level); err != nil {
					return unknownWord("level", level, uapi.Levels())
				}
			}
			return logLevel(cmd.OutOrStdout(), socketDir(), args[0], level)
		},
	}
}

// logLevel sets the log level of a daemon, or prints it if level is empty.
func logLevel(out io.Writer, dir uapi.Dir, name, level string) error {
	return withDaemon(dir, name, func(c *uapi.Client) error {
		var err error
		if level != "" {
			_, err = c.SetLogLevel(level)
		} else if level, err = c.LogLevel(); err == nil {
			_, err = fmt.Fprintln(out, level)
		}
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
			return fmt.Errorf("the daemon of %s is not ropewalk, or too old for this command: %w", name, err)
		}
		if errors.Is(err, syscall.EOPNOTSUPP) {
			return fmt.Errorf("the program that runs %s has no log level that can be read or changed at run time "+
				"(if it is ropewalk-agent, use its --log-level): %w", name, err)
		}
		return err
	})
}
