// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// machine is a host with a first process, in whose mount, PID and UTS namespaces its programs run.
type machine struct {
	host  *netlab.Host
	dir   string // what outlives its reboots
	init  *netlab.Command
	stdin io.Closer
}

// boot starts the machine's first process. The kernel ends all of the machine's processes with it, and it ends with this process.
func boot(host *netlab.Host, name, dir string) (*machine, error) {
	m := &machine{host: host, dir: dir}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m.init = host.Command(context.Background(), self)
	m.init.Args = []string{initName, dir, name}
	m.init.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS}
	m.init.Stderr = os.Stderr
	if m.stdin, err = m.init.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := m.init.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := m.init.Start(); err != nil {
		return nil, fmt.Errorf("starting the first process of %s: %w", name, err)
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("the first process of %s ended", name), m.powerOff())
	}
	return m, nil
}

// powerOff ends all processes of the machine at once, as a power failure does.
func (m *machine) powerOff() error {
	if m.init == nil {
		return nil
	}
	err := errors.Join(m.init.Process.Kill(), m.stdin.Close())
	_ = m.init.Wait() // it was killed
	m.init = nil
	return err
}

// outputDelay bounds how long the output of a program is read that was killed.
const outputDelay = 10 * time.Second

// command prepares a program in all of the machine's namespaces. nsenter forks for the PID namespace, so that the end of ctx kills the
// process group: the program would outlive nsenter, and hold its output open.
func (m *machine) command(ctx context.Context, argv ...string) *exec.Cmd {
	pid := strconv.Itoa(m.init.Process.Pid)
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"-t", pid, "-m", "-n", "-p", "-u", "--"}, argv...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = outputDelay
	return cmd
}

// start starts a program that runs until the machine ends, and appends what it writes to a file.
func (m *machine) start(argv ...string) error {
	log, err := os.OpenFile(m.log(filepath.Base(argv[0])), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := m.command(context.Background(), argv...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }()
	return nil
}

func (m *machine) log(program string) string { return filepath.Join(m.dir, program+".log") }

// run runs a program to its end and returns what it wrote.
func (m *machine) run(ctx context.Context, argv ...string) (string, error) {
	out, err := m.command(ctx, argv...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%q: %w\n%s", argv, err, out)
	}
	return string(out), err
}
