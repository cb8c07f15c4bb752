// SPDX-License-Identifier: Apache-2.0

// Command ropewalk is a WireGuard-compatible datapath. Each command has a file of its name. Only this package reads the
// environment and exits the process.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	runtime.LockOSThread() // no lane may run on the main thread: lanes rename their threads, and this one's name is the process's
	nameProcess()
	ctx, cancel := signal.NotifyContext(context.Background(), stopSignals()...)
	context.AfterFunc(ctx, cancel) // a second signal ends commands that wait for a file to be opened, such as a FIFO
	root := newRootCmd()
	stop := context.AfterFunc(ctx, func() { endWaiting(root, os.Args[1:]) })
	os.Args = append(os.Args[:1:1], wireguardGoArgs(os.Args[0], os.Args[1:], isCommandOf(root), isLikeCommandOf(root), os.Getenv)...)
	err := explainUnknownCommand(root.ExecuteContext(ctx), os.Args[1:])
	stop()
	cancel()
	if err == nil {
		return
	}
	if text := strings.TrimRight(err.Error(), "\n"); text != "" {
		fmt.Fprintf(os.Stderr, "ropewalk: %s\n", printable(text))
		reportFailure(text)
	}
	os.Exit(exitCode(err))
}

// signalGrace is the time that a command has after a signal if it changes nothing, or leaves a change to a daemon.
const signalGrace = time.Second

// endWaiting ends a command that waits for a daemon that does not answer, or for a file. Other commands undo their changes, however long that takes.
func endWaiting(root *cobra.Command, args []string) {
	waiting := []string{"show", "showconf", "set", "setconf", "addconf", "syncconf", "save", "log", "flows", "upgrade", "check", "ready"}
	if slices.Contains(args, "--once") { // else it has to restore the terminal
		waiting = append(waiting, "top")
	}
	cmd, _, err := root.Find(args)
	if err != nil || cmd.Parent() != root || !slices.Contains(waiting, cmd.Name()) {
		return
	}
	time.Sleep(signalGrace)
	fmt.Fprintln(os.Stderr, "ropewalk: interrupted")
	os.Exit(exitError)
}

// nameProcess names a process that was started by /proc/self/exe. Its name is otherwise "exe" in ps(1), pgrep(1) and the kernel's log.
func nameProcess() {
	const comm = "/proc/self/comm"
	if name, err := os.ReadFile(comm); err == nil && string(name) == "exe\n" {
		_ = os.WriteFile(comm, []byte("ropewalk"), 0) // the name is only for people
	}
}

// isCommandOf returns a function that reports whether a word is a command.
func isCommandOf(root *cobra.Command) func(word string) bool {
	return func(word string) bool {
		found, _, err := root.Find([]string{word})
		return word == "help" || err == nil && found != root
	}
}

// isLikeCommandOf returns a function that reports whether a word resembles a command.
func isLikeCommandOf(root *cobra.Command) func(word string) bool {
	return func(word string) bool { return len(root.SuggestionsFor(word)) > 0 }
}

// stopSignals returns the signals that stop a command cleanly. SIGHUP (the terminal was closed) is one, unless nohup ignores it.
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
		Long: "ropewalk is a WireGuard-compatible datapath. It carries packet trains (GSO, GRO) between a multi-queue TUN device and\n" +
			"UDP sockets, with one lane per core. It is configured by wg(8), by wg-quick's files, and by its own commands: set,\n" +
			"setconf, addconf, syncconf, show, showconf, up, down.\n\n" +
			"Exit codes: 0 success, 1 error, 2 wrong command line, 3 a check failed, 4 no check failed but some warned, 5 no such\n" +
			"interface, or no daemon answers for it. up, down and reload exit with the code of a hook that failed.",
		Example: "  ropewalk up wg0\n  ropewalk show wg0 --lanes\n  ropewalk down wg0",
		Version: version,

		SilenceUsage:  true,
		SilenceErrors: true, // main prints them

		SuggestionsMinimumDistance: suggestionDistance,
		CompletionOptions:          cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(newHelpCmd())
	addGroup(root, "Tunnels:", newRunCmd(), newUpCmd(), newDownCmd(), newReloadCmd(), newCheckCmd(), newReadyCmd(), newUpgradeCmd(), newSaveCmd(), newStripCmd(), newLogCmd())
	addGroup(root, "Configuration, as wg(8) does:", newShowCmd(), newTopCmd(), newFlowsCmd(), newShowconfCmd(), newSetCmd(), newSetconfCmd(), newAddconfCmd(), newSyncconfCmd(),
		newGenkeyCmd(), newGenpskCmd(), newPubkeyCmd())
	addGroup(root, "Host:", newDoctorCmd(), newSpreadCmd(), newBenchCmd(), newDemoCmd())
	addGroup(root, "Kubernetes:", newAgentCmd(), newMeshCmd())
	root.AddCommand(newTrafficCmd(), newCompletionCmd(), newVersionCmd())
	root.AddCommand(buildTagCommands()...)
	return root
}

// addGroup adds commands that the help lists under a common title.
func addGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title})
	for _, c := range commands {
		c.GroupID = title
	}
	root.AddCommand(commands...)
}
