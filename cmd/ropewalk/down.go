// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
)

func newDownCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "down CONFIG_FILE | INTERFACE",
		Short: "Take down an interface and undo the changes of up",
		Long: "down takes down an interface: it undoes the changes of up or wg-quick(8) and waits for the daemon to end. With\n" +
			"SaveConfig = true it first saves the interface's state to its file. It also cleans up after a daemon that was killed.\n" +
			"INTERFACE alone means " + quick.DefaultDir + "/INTERFACE.conf, or if there is none, the file with which it was brought up.\n" +
			"Of a file with mistakes down uses only PreDown, PostDown and Table, and it does not save to it.",
		Example:           "  ropewalk down wg0",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE: func(cmd *cobra.Command, args []string) error {
			outliveClosedPipe()
			down := func(r *quick.Runner, i quick.Interface) error { return r.Down(cmd.Context(), i) }
			if i, gone := withoutFile(args[0]); gone {
				fmt.Fprintln(cmd.ErrOrStderr(), printable(fmt.Sprintf("Warning: `%s', with which %s was brought up, does not exist: no PreDown and PostDown commands are executed", i.Path, i.Name)))
				return withOpened(cmd, i, nil, down)
			}
			i, err := openRunning(args[0], openInterface)
			if mistakes, ok := errors.AsType[conffile.Error](err); ok {
				fmt.Fprintln(cmd.ErrOrStderr(), printable(keyHint(mistakes).Error()))
				fmt.Fprintln(cmd.ErrOrStderr(), "Warning: the file has mistakes: down uses only its PreDown, PostDown and Table settings, and does not save to it")
				i, err = openRunning(args[0], quick.OpenHooks)
			}
			return withOpened(cmd, i, err, down)
		},
	}
}

// withoutFile returns an interface with an empty configuration if the file with which it was brought up has gone.
func withoutFile(name string) (i quick.Interface, gone bool) {
	_, _, err := quick.Find(quick.DefaultDir, name)
	path := startedFrom(name)
	if path == "" || !errors.Is(err, quick.ErrNoFile) {
		return i, false
	}
	_, err = os.Stat(path)
	return quick.Interface{Name: name, Path: path, File: new(conffile.File)}, errors.Is(err, fs.ErrNotExist)
}

// startedFrom returns the path of the file with which `ropewalk up` brought an interface up, "" if it is unknown or if name is a path.
func startedFrom(name string) string {
	if strings.Contains(name, "/") {
		return ""
	}
	return quick.StartedFrom(quick.DefaultRunDir, name)
}
