// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Command is a Kubectl that starts processes.
type Command struct {
	Program string
	Flags   []string // which select the cluster
}

// killedAfter bounds how long the output of a process that was killed is awaited.
const killedAfter = 5 * time.Second

func (c Command) prepare(ctx context.Context, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.CommandContext(ctx, c.Program, append(slices.Clone(c.Flags), args...)...)
	cmd.WaitDelay = killedAfter
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr
}

// Output implements Kubectl.
func (c Command) Output(ctx context.Context, args ...string) ([]byte, error) {
	cmd, stderr := c.prepare(ctx, args...)
	out, err := cmd.Output()
	return out, explain(ctx, "kubectl "+strings.Join(args, " "), err, stderr)
}

// explain adds the reason to the error of a command.
func explain(ctx context.Context, what string, err error, stderr *bytes.Buffer) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	}
	return fmt.Errorf("%s: %w: %s", what, err, strings.TrimSpace(stderr.String()))
}

// Forwarded implements Kubectl. It forwards a free port while it reads.
func (c Command) Forwarded(ctx context.Context, namespace, pod, port, path string) ([]byte, error) {
	running, end := context.WithCancel(ctx)
	cmd, stderr := c.prepare(running, "port-forward", "--address=127.0.0.1", "--namespace="+namespace, "pod/"+pod, ":"+port)
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		end()
		return nil, err
	}
	body, err := readForwarded(ctx, stdout, path)
	end()
	_ = cmd.Wait() // killed
	return body, explain(ctx, "kubectl port-forward pod/"+pod+" :"+port, err, stderr)
}

// readForwarded reads a path from the address that kubectl prints.
func readForwarded(ctx context.Context, stdout io.Reader, path string) ([]byte, error) {
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.New("it ended")
	}
	from, _, ok := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " -> ")
	if !ok {
		return nil, fmt.Errorf("it prints %q", line)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+from+path, nil)
	if err != nil {
		return nil, err
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request) // without a proxy: it is a local port
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status)
	}
	return body, err
}
