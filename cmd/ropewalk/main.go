// SPDX-License-Identifier: Apache-2.0

// Command ropewalk is a WireGuard-compatible datapath. One file per command; this package is the only one that reads
// the environment and exits.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	runtime.LockOSThread() // the first thread, whose name is the process's: no lane may get it, and give it its own
	ctx, cancel := signal.NotifyContext(context.Background(), stopSignals()...)
	err := newRootCmd().ExecuteContext(ctx)
	cancel()
	if err == nil {
		return
	}
	if text := strings.TrimRight(err.Error(), "\n"); text != "" {
		fmt.Fprintf(os.Stderr, "ropewalk: %s\n", printable(text))
	}
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

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:   "ropewalk",
		Short: "A WireGuard-compatible datapath that uses all NIC queues and cores",
		Long: "ropewalk is a WireGuard-compatible datapath. It carries whole packet trains between a multi-queue TUN and\n" +
			"UDP GSO/GRO sockets, one lane per core, and is configured with wg(8) or wg-quick's files, or with commands of its own\n" +
			"that do the same: set, setconf, addconf, syncconf, show, showconf, up, down.\n\n" +
			"It exits with 0 when all went well, 1 after an error, 2 when the command line is wrong, 3 when a check failed, 4 when\n" +
			"none failed but some warned, and 5 when no daemon answers for the interface.",
		Example: "  ropewalk up wg0\n  ropewalk show wg0 --lanes\n  ropewalk down wg0",
		Version: version,

		SilenceUsage:  true,
		SilenceErrors: true, // main prints them

		SuggestionsMinimumDistance: suggestionDistance,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelpCmd())
	addGroup(root, "Tunnels:", newRunCmd(), newUpCmd(), newDownCmd(), newReloadCmd(), newUpgradeCmd(), newSaveCmd(), newStripCmd(), newLogCmd())
	addGroup(root, "What wg does:", newShowCmd(), newTopCmd(), newShowconfCmd(), newSetCmd(), newSetconfCmd(), newAddconfCmd(), newSyncconfCmd(),
		newGenkeyCmd(), newGenpskCmd(), newPubkeyCmd())
	addGroup(root, "This host:", newDoctorCmd(), newSpreadCmd(), newBenchCmd(), newDemoCmd())
	addGroup(root, "Kubernetes:", newAgentCmd(), newMeshCmd())
	root.AddCommand(newTrafficCmd(), newCompletionCmd(), newVersionCmd())
	root.AddCommand(buildTagCommands()...)
	return root
}

// addGroup adds commands that the help lists under a title.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}
