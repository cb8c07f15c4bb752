// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// hook runs one command of PreUp, PostUp, PreDown or PostDown.
type hook struct{ command string }

// hooks returns a step for each command, with %i replaced by the interface's name, as in wg-quick.
func hooks(name string, commands []string) []Step {
	steps := make([]Step, len(commands))
	for i, c := range commands {
		steps[i] = hook{strings.ReplaceAll(c, "%i", name)}
	}
	return steps
}

func (s hook) String() string { return s.command }

// hookGrace is the time between SIGTERM and SIGKILL for a hook after an interruption.
const hookGrace = 5 * time.Second

func (s hook) run(ctx context.Context, j *job) error {
	argv, err := j.Tools.shell(s.command)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = j.Stdin, j.Stdout, j.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = hookGrace
	err = cmd.Run()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("running hook %q: %w", s.command, err)
	}
	return nil
}

// shell returns the command line of a hook: bash with the options of wg-quick, which hooks inherit there, else sh, which lacks
// two of them.
func (t Tools) shell(command string) ([]string, error) {
	switch {
	case t.Bash != "":
		return []string{t.Bash, "-e", "-o", "pipefail", "-O", "extglob", "-c", command}, nil
	case t.Sh != "":
		return []string{t.Sh, "-e", "-c", command}, nil
	}
	return nil, errors.New("running a hook: neither bash nor sh is installed")
}
