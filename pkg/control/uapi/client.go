// SPDX-License-Identifier: Apache-2.0

package uapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// Client is a connection to a device's daemon, ropewalk's or another's. It is for one goroutine at a time. The error of a refused
// operation is an *Error, after which the Client stays usable. After any other error it must be closed. Each operation fails with
// os.ErrDeadlineExceeded when the daemon takes more than a minute.
type Client struct {
	dir   Dir
	name  string
	conn  net.Conn
	lines *lineReader
}

// Dial connects to the daemon of an interface in DefaultDir. See Dir.Dial.
func Dial(name string) (*Client, error) {
	return DefaultDir.Dial(name)
}

// ErrNotSocket is wrapped in the error for a file that is in the place of a socket.
var ErrNotSocket = errors.New("the file is not a socket")

// Dial connects to the daemon of an interface. The error is os.ErrNotExist when there is no
// socket. It is syscall.ECONNREFUSED when the daemon died without removing its socket, and
// syscall.EAGAIN when its listen queue is full.
func (d Dir) Dial(name string) (*Client, error) {
	path, err := d.path(name)
	if err != nil {
		return nil, fmt.Errorf("connecting to interface %q: %w", name, err)
	}
	conn, err := net.DialTimeout("unix", path, requestTimeout)
	if info, statErr := os.Lstat(path); err != nil && statErr == nil && info.Mode().Type() != os.ModeSocket {
		err = fmt.Errorf("%w: %w: remove it, and the daemon of `ropewalk up` creates its socket again", err, ErrNotSocket)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to interface %s: %w", name, err)
	}
	c := newClient(name, conn)
	c.dir = d
	return c, nil
}

func newClient(name string, conn net.Conn) *Client {
	return &Client{name: name, conn: conn, lines: newLineReader(conn, 0)}
}

// Close closes the connection.
func (c *Client) Close() error {
	return c.conn.Close()
}

// Status returns the present state of the device. Status.Name is the name that was dialled.
func (c *Client) Status() (config.Status, error) { return c.StatusOf() }

// StatusOf is Status with only these peers, as far as they exist; without keys it has all peers.
// Only daemons with the feature get.public_key have it.
func (c *Client) StatusOf(peers ...noise.PublicKey) (config.Status, error) {
	if err := c.send(requestOf(opGet, peers)); err != nil {
		return config.Status{}, fmt.Errorf("requesting the status of interface %s: %w", c.name, err)
	}
	st, err := parseGet(c.lines)
	if err != nil {
		return config.Status{}, fmt.Errorf("reading the status of interface %s: %w", c.name, err)
	}
	st.Name = c.name
	return st, nil
}

// Configure applies a change. ropewalk's daemon applies all of it or nothing. Daemons that do not know names of peers get the change without
// the names.
func (c *Client) Configure(dev config.Device) error {
	if err := checkNames(dev); err != nil {
		return fmt.Errorf("configuring interface %s: %w", c.name, err)
	}
	err := c.configure(dev)
	plain, named := withoutNames(dev)
	if !named || !errors.Is(err, unix.EINVAL) || c.dir == "" {
		return err
	}
	again, dialErr := c.dir.Dial(c.name) // on this connection wireguard-go would read the rest of the refused request
	if dialErr != nil {
		return err
	}
	defer again.Close()
	return again.configure(plain)
}

// checkNames returns an error for names that every daemon refuses. If a daemon refuses the others with EINVAL, it knows no names.
func checkNames(dev config.Device) error {
	for i := range dev.Peers {
		p := &dev.Peers[i]
		if p.Name != nil {
			if err := config.CheckName(*p.Name); err != nil {
				return invalidError("peer %s: %w", p.PublicKey, err)
			}
		}
		if err := config.CheckEndpointName(p.EndpointName); err != nil {
			return invalidError("peer %s: %w", p.PublicKey, err)
		}
	}
	return nil
}

// withoutNames returns the change without the fields of peers that only ropewalk knows (names), and whether there were any.
func withoutNames(dev config.Device) (plain config.Device, named bool) {
	plain = dev
	plain.Peers = slices.Clone(dev.Peers)
	for i := range plain.Peers {
		p := &plain.Peers[i]
		named = named || p.Name != nil || p.EndpointName != ""
		p.Name, p.EndpointName = nil, ""
	}
	return plain, named
}

func (c *Client) configure(dev config.Device) error {
	var b bytes.Buffer
	b.WriteString(opSet + "\n")
	err := WriteSet(&b, dev)
	b.WriteByte('\n')
	if err == nil {
		err = c.send(b.Bytes())
	}
	if err == nil {
		err = readAnswer(c.lines, nil)
	}
	if err != nil {
		return fmt.Errorf("configuring interface %s: %w", c.name, err)
	}
	return nil
}

// Stats requests the device's statistics and stores them in into, as json.Unmarshal does. Only ropewalk's daemon has this
// operation: others close the connection.
func (c *Client) Stats(into any) error {
	if err := c.requestJSON(into, opStats); err != nil {
		return fmt.Errorf("reading the statistics of interface %s: %w", c.name, err)
	}
	return nil
}

// Flows requests the device's busiest flows and stores them in into, as json.Unmarshal does. The device counts flows from the first
// request on. See Stats.
func (c *Client) Flows(into any) error {
	if err := c.requestJSON(into, opFlows); err != nil {
		return fmt.Errorf("reading the flows of interface %s: %w", c.name, err)
	}
	return nil
}

// requestOf returns an operation about these peers.
func requestOf(op string, peers []noise.PublicKey) []byte {
	b := []byte(op + "\n")
	for _, key := range peers {
		b = append(b, "public_key="+key.Hex()+"\n"...)
	}
	return append(b, '\n')
}

func (c *Client) requestJSON(into any, op string, peers ...noise.PublicKey) error {
	if err := c.send(requestOf(op, peers)); err != nil {
		return err
	}
	raw, err := c.readJSON()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// readJSON reads a line of JSON and the reply after it, or only the reply if the daemon refuses.
func (c *Client) readJSON() ([]byte, error) {
	raw, err := c.lines.longLine()
	if err != nil {
		return nil, err
	}
	if value, ok := strings.CutPrefix(string(raw), errnoPrefix); ok {
		var r reply
		return nil, errors.Join(r.set(value), c.lines.skip(), r.err())
	}
	return raw, readAnswer(c.lines, nil)
}

func (c *Client) send(request []byte) error {
	c.lines.beginOperation(maxReply)
	if err := c.conn.SetDeadline(time.Now().Add(requestTimeout)); err != nil {
		return err
	}
	_, err := c.conn.Write(request)
	return err
}

// Interfaces lists, sorted, the interfaces whose socket a process serves. A missing directory means no interfaces.
func (d Dir) Interfaces() ([]string, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var names []string
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), suffix)
		if !ok || entry.Type() != os.ModeSocket {
			continue
		}
		path, err := d.path(name)
		if err == nil && isServed(path) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// IsNotRunning reports whether an error of Dial means that no daemon runs: there is no socket, or a dead one.
func IsNotRunning(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}

// IsUnresponsive reports whether an error means that a daemon runs and does not answer. An
// operation timed out, or the listen queue of its socket is full (unix(7)).
func IsUnresponsive(err error) bool {
	e, ok := errors.AsType[net.Error](err)
	return ok && e.Timeout() // also true for EAGAIN
}
