// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/pkg/protocol/session"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

const (
	// keepInterval is the minimum time between two writes of the file. keepDelay is the time from a change to the first write.
	keepInterval = 10 * time.Second
	keepDelay    = time.Second
	// keepShare is the ratio of the pause after a write to the time that the write took: it costs a thousandth of a core. The pause is at most
	// maxKeepPause, since endpoints in a file that is older than any session are not used.
	keepShare    = 1000
	maxKeepPause = time.Minute
	// maxEndpoints is the largest file that is read, in bytes: 300,000 peers.
	maxEndpoints = 64 << 20
)

// endpoints keeps the endpoints of peers with a session in a file, so that a process that replaces a killed one can renew the sessions. A
// peer without traffic from this side would notice after 15 s. The file holds no secret, and is lost at a reboot.
type endpoints struct {
	dir     string // empty: nothing is kept
	log     *slog.Logger
	changed chan struct{} // has an element if the file is out of date
	ended   chan struct{} // closed at the end of keep

	mu     sync.Mutex
	own    noise.PublicKey // of the process before
	last   map[noise.PublicKey]device.SessionEndpoint
	loaded time.Time
}

// endpointsFile is the content of the file.
type endpointsFile struct {
	PublicKey noise.PublicKey          `json:"public_key"` // of the interface
	Peers     []device.SessionEndpoint `json:"peers"`
}

func newEndpoints(o Options) *endpoints {
	return &endpoints{dir: o.StateDir, log: o.Log, changed: make(chan struct{}, 1), ended: make(chan struct{})}
}

// path returns the file of an interface. A process that was killed leaves it for the next one.
func (e *endpoints) path(name string) string { return filepath.Join(e.dir, name+".endpoints") }

// note is device.Config.OnSession.
func (e *endpoints) note() {
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// recall is device.Config.Recall. It returns each peer once, since it may be removed and added again, and no endpoint once all sessions of the process
// before have expired.
func (e *endpoints) recall(own, peer noise.PublicKey) (last device.SessionEndpoint, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if last, ok = e.last[peer]; !ok || own != e.own {
		return device.SessionEndpoint{}, false
	}
	delete(e.last, peer)
	if time.Since(e.loaded).Nanoseconds() >= session.RejectAfterTime {
		last.Endpoint = netip.AddrPort{}
	}
	return last, last.Endpoint.IsValid() || !last.PostQuantum.IsZero()
}

// load reads what the process before has kept for the interface. Endpoints of peers whose session has expired meanwhile are left out.
func (e *endpoints) load(name string) {
	if e.dir == "" {
		return
	}
	f, err := readEndpoints(e.path(name))
	if err != nil {
		e.log.Warn("reading the saved endpoints of peers failed, sessions with these peers resume only when the peers start a handshake", "interface", name, "error", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.own, e.last, e.loaded = f.PublicKey, map[noise.PublicKey]device.SessionEndpoint{}, time.Now()
	for _, p := range f.Peers {
		if age := time.Since(p.LastHandshake); age < 0 || age.Nanoseconds() >= session.RejectAfterTime {
			p.Endpoint = netip.AddrPort{}
		}
		if p.Endpoint.IsValid() || !p.PostQuantum.IsZero() {
			e.last[p.PublicKey] = p
		}
	}
}

// readEndpoints returns the content of a file, nothing if there is no file.
func readEndpoints(path string) (f endpointsFile, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxEndpoints))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return endpointsFile{}, fmt.Errorf("reading %s: %w", path, err)
	}
	return f, nil
}

// keep writes the file after changes until ctx ends. It sleeps in between.
func (e *endpoints) keep(ctx context.Context, name string, current func() *device.Device) {
	defer close(e.ended)
	if e.dir == "" {
		return
	}
	failed := false
	for pause := time.Duration(0); ; {
		if !sleep(ctx, pause) || !e.awaitChange(ctx) || !sleep(ctx, keepDelay) {
			return
		}
		began := time.Now()
		var err error
		if own, peers, ok := current().SessionEndpoints(); ok {
			err = e.write(name, endpointsFile{own, peers})
		}
		if err != nil && !failed {
			e.log.Warn("saving the endpoints of peers failed, retrying after later changes: after a crash, sessions resume only when the peers start a handshake", "interface", name, "error", err)
		}
		failed = err != nil
		pause = min(max(keepInterval, keepShare*time.Since(began)), maxKeepPause)
	}
}

// end follows that the device has ended in order. There are no sessions to renew, so only the peers that
// had post-quantum keys stay in the file. last has them, or is zero if the device has no private key: then
// the file of the process before stays. It waits for the end of keep.
func (e *endpoints) end(name string, last endpointsFile) {
	<-e.ended
	if e.dir == "" {
		return
	}
	if err := e.leavePast(name, last); err != nil {
		e.log.Warn("changing the saved endpoints of peers while shutting down failed, leaving the file: the next daemon ignores expired sessions in it", "interface", name, "error", err)
	}
}

func (e *endpoints) leavePast(name string, last endpointsFile) error {
	if last.PublicKey.IsZero() {
		last, _ = readEndpoints(e.path(name)) // load has warned of a damaged file
	}
	past := endpointsFile{PublicKey: last.PublicKey}
	for _, p := range last.Peers {
		if !p.PostQuantum.IsZero() {
			past.Peers = append(past.Peers, device.SessionEndpoint{PublicKey: p.PublicKey, PostQuantum: p.PostQuantum})
		}
	}
	if len(past.Peers) > 0 {
		return e.write(name, past)
	}
	if err := os.Remove(e.path(name)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// awaitChange reports whether something has changed before ctx ended.
func (e *endpoints) awaitChange(ctx context.Context) bool {
	select {
	case <-e.changed:
		return true
	case <-ctx.Done():
		return false
	}
}

// sleep reports whether d has passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// write replaces the file.
func (e *endpoints) write(name string, f endpointsFile) error {
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encoding endpoints: %w", err)
	}
	if err := os.MkdirAll(e.dir, 0o755); err != nil {
		return err
	}
	return atomicfile.Write(e.path(name), append(text, '\n'), 0o600)
}
