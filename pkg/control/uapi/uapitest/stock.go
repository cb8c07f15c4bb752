// SPDX-License-Identifier: Apache-2.0

package uapitest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// Stock is the installed wg(8) in mount and network namespaces of its own. A test's directory is mounted at /var/run/wireguard, so wg
// sees neither the host's interfaces nor the sockets of other tests.
type Stock struct {
	dir uapi.Dir
}

// Result is the output and the exit status of a command.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// NewStock skips the test when wg is not installed, or namespaces cannot be created.
func NewStock(tb testing.TB, dir uapi.Dir) *Stock {
	tb.Helper()
	if _, err := exec.LookPath("wg"); err != nil {
		tb.Skip("needs wg(8): ", err)
	}
	if os.Geteuid() != 0 {
		tb.Skip("needs root, to give wg(8) a mount namespace")
	}
	s := &Stock{dir: dir}
	if r, err := s.run("", nil, "true"); err != nil || r.Code != 0 {
		tb.Skipf("needs mount and network namespaces: %v %s", err, r.Stderr)
	}
	return s
}

// Run runs wg with these arguments, stdin and extra environment, and fails the test only when it cannot be started.
func (s *Stock) Run(tb testing.TB, stdin string, env []string, args ...string) Result {
	tb.Helper()
	r, err := s.run(stdin, env, append([]string{"wg"}, args...)...)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func (s *Stock) run(stdin string, env []string, command ...string) (Result, error) {
	const enter = `mount -t tmpfs none /var/run && mkdir /var/run/wireguard && mount --bind "$0" /var/run/wireguard && exec "$@"`
	cmd := exec.Command("sh", append([]string{"-c", enter, string(s.dir)}, command...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), append([]string{"WG_ENDPOINT_RESOLUTION_RETRIES=0"}, env...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		err = nil
	}
	code := -1
	if cmd.ProcessState != nil {
		code = cmd.ProcessState.ExitCode()
	}
	return Result{stdout.String(), stderr.String(), code}, err
}
