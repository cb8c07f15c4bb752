// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/test/expect"
)

// TestSignalEndsCommandThatReadsInput: the input is a pipe to which nobody writes.
func TestSignalEndsCommandThatReadsInput(t *testing.T) {
	errSignal := errors.New("interrupt signal received")
	fifo := filepath.Join(t.TempDir(), "fifo")
	expect.NoError(t, unix.Mkfifo(fifo, 0o600))
	in, silent, err := os.Pipe()
	expect.NoError(t, err)
	t.Cleanup(func() { expect.NoError(t, silent.Close()) })
	for _, tt := range []struct {
		cmd  *cobra.Command
		args []string
	}{
		{newPubkeyCmd(), []string{}},
		{newSetCmd(), []string{"wg0", "private-key", fifo}},
		{newSetconfCmd(), []string{"wg0", fifo}},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errSignal)
		tt.cmd.SetIn(in)
		tt.cmd.SetOut(io.Discard)
		tt.cmd.SetErr(io.Discard)
		tt.cmd.SetArgs(tt.args)
		tt.cmd.SilenceUsage, tt.cmd.SilenceErrors = true, true
		if err := tt.cmd.ExecuteContext(ctx); !errors.Is(err, errSignal) {
			t.Errorf("%s: got error %v, want %v", tt.cmd.Name(), err, errSignal)
		}
	}
	d := doctorRun{in: in, out: io.Discard}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if d.confirmed(ctx) {
		t.Error("doctor: confirmed without an answer")
	}
	end, err := os.OpenFile(fifo, os.O_RDWR, 0) // ends the reads
	expect.NoError(t, err)
	expect.NoError(t, end.Close())
}
