// SPDX-License-Identifier: Apache-2.0

// Command ropewalk is a WireGuard-compatible datapath. One file per command; this package is the only one that reads
// the environment and exits.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

// Exit codes.
const (
	exitError = 1
	exitUsage = 2
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), stopSignals()...)
	err := newRootCmd().ExecuteContext(ctx)
	cancel()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "ropewalk: %v\n", err)
	os.Exit(exitCode(err))
}

// stopSignals are those that end a command in good order. A closed terminal (SIGHUP) is one, unless nohup says otherwise.
func stopSignals() []os.Signal {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// usageError marks a mistake in the command line itself.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func exitCode(err error) int {
	var usage usageError
	if errors.As(err, &usage) || strings.HasPrefix(err.Error(), "unknown command") {
		return exitUsage
	}
	return exitError
}

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "ropewalk",
		Short: "A WireGuard-compatible datapath that uses all NIC queues and cores",
		Long: "ropewalk is a WireGuard-compatible datapath. It carries whole packet trains between a multi-queue TUN and\n" +
			"UDP GSO/GRO sockets, one lane per core, and is configured with wg(8) or wg-quick's files.",
		Version:           version,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		newRunCmd(), newUpCmd(), newDownCmd(), newStripCmd(), newSaveCmd(),
		newShowCmd(), newGenkeyCmd(), newGenpskCmd(), newPubkeyCmd(),
		newSpreadCmd(), newDemoCmd(), newBenchCmd(), newTrafficCmd(),
	)
	return root
}
