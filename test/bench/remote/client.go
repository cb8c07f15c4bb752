// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// Agent is the name of this program among the Programs.
	Agent = "bench"
	// endLimit is how long an agent may take to undo everything.
	endLimit = time.Minute
)

// Config says how Dial reaches a host.
type Config struct {
	// Name is the host's in messages, Destination ssh's.
	Name, Destination string
	// SSH is the command; empty means ssh.
	SSH []string
	// TempDir is where the programs' directory is made on the host.
	TempDir string
	// Arch is the architecture of the programs, by uname -m.
	Arch string
	// Programs are the files to copy, by their names there.
	Programs map[string]string
}

// Uname returns the name that uname -m has for an architecture of Go.
func Uname(arch string) string {
	switch arch {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return arch
}

// Client is a connection to the agent of a host. Its methods may be called by any goroutine.
type Client struct {
	cfg     Config
	dir     string
	cmd     *exec.Cmd
	in      io.Closer // the agent's standard input
	rpc     *rpc.Client
	log     lastWords
	done    chan struct{} // closed when ssh has ended
	exit    error         // of ssh; after done
	closing atomic.Bool
	lost    context.CancelCauseFunc
}

// Dial copies the programs to a host, and starts the agent. lost is called when the connection ends before Close. ssh asks for nothing:
// it needs a key, and a host that it knows.
func Dial(ctx context.Context, cfg Config, lost context.CancelCauseFunc) (*Client, error) {
	c := &Client{cfg: cfg, done: make(chan struct{}), lost: lost}
	if err := c.makeDir(ctx); err != nil {
		return nil, c.wrap("copying the programs to", err)
	}
	if err := c.start(); err != nil {
		return nil, c.wrap("starting the agent of", err)
	}
	go c.keepAlive()
	return c, nil
}

// Path returns the path of a program on the host.
func (c *Client) Path(program string) string { return filepath.Join(c.dir, program) }

// Has reports whether a program was copied.
func (c *Client) Has(program string) bool { return c.cfg.Programs[program] != "" }

func (c *Client) wrap(doing string, err error) error {
	return fmt.Errorf("%s host %s (%s): %w", doing, c.cfg.Name, c.cfg.Destination, err)
}

// ssh returns a command in a process group of its own, so that Ctrl-C leaves the agent's end to Close.
func (c *Client) ssh(ctx context.Context, script string) *exec.Cmd {
	argv := slices.Clone(c.cfg.SSH)
	if len(argv) == 0 {
		argv = []string{"ssh"}
	}
	argv = append(argv, "-T", "-S", "none", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
		"--", c.cfg.Destination, "exec sh -c "+quote(script))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = &c.log
	return cmd
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// makeDir copies the agent, whose file is the standard input. The host needs no more than POSIX's commands and mktemp.
func (c *Client) makeDir(ctx context.Context) error {
	f, err := os.Open(c.cfg.Programs[Agent])
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	cmd := c.ssh(ctx, fmt.Sprintf(`set -e
system=$(uname -s -m)
[ "$system" = "Linux %[1]s" ] || { echo "it is $system, and the programs are for Linux %[1]s" >&2; exit 1; }
d=$(mktemp -d %[2]s/%[5]sXXXXXX)
trap 'rm -rf "$d"' EXIT
cat >"$d/%[3]s"
[ $(wc -c <"$d/%[3]s") -eq %[4]d ]
chmod 700 "$d/%[3]s"
"$d/%[3]s" -h 2>/dev/null || { echo "programs do not run in $d: is it mounted noexec? --dir is another one" >&2; exit 1; }
printf '\n%%s\n' "$d"
trap - EXIT`, c.cfg.Arch, quote(c.cfg.TempDir), Agent, st.Size(), dirPrefix))
	cmd.Stdin = f
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return c.explain(err)
	}
	text := strings.TrimSpace(out.String())
	c.dir = text[strings.LastIndex(text, "\n")+1:] // a shell's start-up file may print before it
	return nil
}

// explain adds what the host, or ssh, wrote.
func (c *Client) explain(err error) error {
	if text := c.log.String(); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// firstLine is the line before the agent's answers.
const firstLine = "ropewalk-bench host"

// answers reads what follows firstLine.
type answers struct {
	*bufio.Reader
	begun bool
}

func (r *answers) Read(b []byte) (int, error) {
	for !r.begun {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		r.begun = line == firstLine+"\n"
	}
	return r.Reader.Read(b)
}

// start starts the agent, and copies the other programs.
func (c *Client) start() error {
	c.cmd = c.ssh(context.Background(), fmt.Sprintf(`printf '\n%s\n'; exec %s host`, firstLine, quote(c.Path(Agent))))
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := c.cmd.Start(); err != nil {
		return err
	}
	copied := pack(in, c.cfg.Programs)
	c.in, c.rpc = in, jsonrpc.NewClient(&conn{untilEnd{&answers{Reader: bufio.NewReader(out)}, func() { go c.ended() }}, in, in})
	if copied == nil {
		copied = c.call(context.Background(), "Alive", None{}, nil)
	}
	if copied != nil {
		_ = in.Close()
		<-c.done
		return c.explain(cmp.Or(c.exit, copied))
	}
	return nil
}

// ended waits for ssh. Without Close before it, the connection is lost.
func (c *Client) ended() {
	c.exit = c.cmd.Wait()
	close(c.done)
	if !c.closing.Load() {
		c.lost(c.lostError())
	}
}

func (c *Client) lostError() error {
	return c.wrap("lost the connection to", c.explain(cmp.Or(c.exit, errEnded)))
}

var errEnded = errors.New("the agent has ended")

// pack writes the programs but the agent as a tar, in the order of their names.
func pack(to io.Writer, programs map[string]string) error {
	w := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		if name == Agent {
			continue
		}
		if err := packFile(w, name, programs[name]); err != nil {
			return err
		}
	}
	return w.Close()
}

func packFile(w *tar.Writer, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o700, Size: st.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// keepAlive ends ssh if the host answers nothing any more.
func (c *Client) keepAlive() {
	for {
		select {
		case <-c.done:
			return
		case <-time.After(keepalive):
		}
		ctx, cancel := context.WithTimeout(context.Background(), maxSilence)
		err := c.call(ctx, "Alive", None{}, nil)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			_ = c.cmd.Process.Kill()
		}
	}
}

// call asks the agent. reply is a pointer, nil for none. A request goes on after the end of ctx, until Close.
func (c *Client) call(ctx context.Context, method string, args, reply any) error {
	var text json.RawMessage // an answer may come after the end of ctx, when the caller has reply again
	call := c.rpc.Go("Host."+method, args, &text, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if call.Error != nil || reply == nil {
			return call.Error
		}
		return json.Unmarshal(text, reply)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Call is call with the host's name in errors. A lost connection also ends ctx soon.
func (c *Client) Call(ctx context.Context, method string, args, reply any) error {
	err := c.call(ctx, method, args, reply)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if errors.Is(err, rpc.ErrShutdown) || errors.Is(err, io.ErrUnexpectedEOF) {
		<-c.done
		return c.lostError()
	}
	return fmt.Errorf("host %s: %w", c.cfg.Name, err)
}

// Close ends the agent, and returns when the host is as it was before.
func (c *Client) Close() error {
	if c.closing.Swap(true) {
		return nil
	}
	select {
	case <-c.done: // lost: that is known
		return nil
	default:
	}
	_ = c.in.Close()
	select {
	case <-c.done:
		if c.exit == nil {
			return nil
		}
		return c.wrap("ending the agent of", c.explain(c.exit))
	case <-time.After(endLimit):
		_ = c.cmd.Process.Kill()
		return c.wrap("ending the agent of", fmt.Errorf("it did not end in %v", endLimit))
	}
}

// maxWords is the length of the end of a log that is kept, in bytes.
const maxWords = 4096

// lastWords keeps the end of a log.
type lastWords struct {
	mu   sync.Mutex
	text []byte
}

func (w *lastWords) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, b...)
	w.text = w.text[max(len(w.text)-maxWords, 0):]
	return len(b), nil
}

func (w *lastWords) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.TrimSpace(string(w.text))
}
