// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/underlay"
	"github.com/ropewalk/ropewalk/pkg/netio/underlay/udp"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/tunnel/device"
)

// Version is the version of the handover format and protocol. Daemons of different versions cannot hand over to each other: the
// predecessor keeps the tunnel. The successor opens the queues while the predecessor still reads them, so daemons of one version set the same
// offloads.
const Version = 1

// ErrVersion is the error for another process with a different Version.
var ErrVersion = errors.New("the other daemon has an incompatible handover version")

// errMalformed is the error for bytes that are not a handover. It does not quote them: they may be next to a key.
var errMalformed = errors.New("malformed handover")

const (
	magic      = "ropewalk"
	headerSize = len(magic) + 8
	// maxStateSize bounds the encoded state, in bytes: two KiB for each of device.MaxPeers.
	maxStateSize = 1<<31 - 1
)

// Tunnel is a tunnel: its state and its descriptors, which the holder of the Tunnel owns.
type Tunnel struct {
	State
	ControlFD int   // the control socket; -1 for none
	QueueFDs  []int // the TUN queues
	Sockets   udp.Sockets
}

// FDs returns all descriptors.
func (t *Tunnel) FDs() []int {
	fds := append([]int{t.ControlFD}, t.QueueFDs...)
	for fd := range t.Sockets.FDs {
		fds = append(fds, fd)
	}
	return fds
}

// CloseFDs closes all descriptors.
func (t *Tunnel) CloseFDs() error {
	fds := t.FDs()
	if t.ControlFD < 0 {
		fds = fds[1:]
	}
	return closeAll(fds)
}

// State describes a tunnel without its descriptors. They are sent after it. With a snapshot they
// are the TUN queues. With a stopped tunnel they are the control socket and the sockets of the
// lanes, of the listen port and of the source ports. It holds secrets.
type State struct {
	Name    string `json:"name"`
	Queues  int    `json:"queues"`
	Steered bool   `json:"steered"`
	// KeepSocket makes the successor create a removed control socket again, as the predecessor does.
	KeepSocket bool `json:"keep_socket"`

	Lanes   int      `json:"lanes"`   // with a socket; 0 while the interface is down
	Holders int      `json:"holders"` // 1 if a socket keeps other programs from the listen port, else 0
	Sources []uint16 `json:"sources"` // ports
	// Selection is the socket selection in force. Its first Plans port plans are loaded.
	Selection *underlay.Selection `json:"selection"`
	Plans     int                 `json:"plans"`
	// AbsentLinks are the former indexes of links of endpoints that do not exist at present, by name (hostnet.AbsentLinks).
	AbsentLinks map[string]int `json:"absent_links"`
	// EncodedDevice is Device in the encoded state. It is nil otherwise.
	EncodedDevice json.RawMessage `json:"device"`

	Device *device.State `json:"-"`
}

// Format prints a fixed text, whatever the verb: the state holds secrets.
func (s *State) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "handover state") }

// LogValue logs a fixed text: the state holds secrets.
func (s *State) LogValue() slog.Value { return slog.StringValue("handover state") }

// sockets returns how many descriptors follow the state of a stopped tunnel.
func (s *State) sockets() int { return 1 + s.Lanes + s.Holders + len(s.Sources) }

// plainState is State without its methods, for encoding/json.
type plainState State

// encode returns magic, version, length and the JSON text.
func (s *State) encode() (b []byte, err error) {
	plain := plainState(*s)
	if plain.EncodedDevice, err = s.Device.Encode(); err != nil {
		return nil, err
	}
	defer clear(plain.EncodedDevice)
	text, err := json.Marshal(&plain)
	if err != nil {
		return nil, fmt.Errorf("encoding the handover state: %w", err)
	}
	defer clear(text)
	b = append(make([]byte, 0, headerSize+len(text)), magic...)
	b = binary.BigEndian.AppendUint32(b, Version)
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...), nil
}

// parseState is the inverse of encode. The error for another version is ErrVersion.
func parseState(b []byte) (*State, error) {
	if len(b) < headerSize || string(b[:len(magic)]) != magic {
		return nil, errMalformed
	}
	if err := checkVersion(b[len(magic):]); err != nil {
		return nil, err
	}
	text := b[headerSize:]
	if n := binary.BigEndian.Uint32(b[headerSize-4:]); uint64(n) != uint64(len(text)) || n > maxStateSize {
		return nil, errMalformed
	}
	s := new(State)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if d.Decode((*plainState)(s)) != nil || d.More() || !s.valid() {
		return nil, errMalformed
	}
	var err error
	s.Device, err = device.ParseState(s.EncodedDevice)
	clear(s.EncodedDevice)
	s.EncodedDevice = nil
	return s, err
}

// checkVersion checks the version at the beginning of b.
func checkVersion(b []byte) error {
	if v := binary.BigEndian.Uint32(b); v != Version {
		return fmt.Errorf("handover version %d, want %d: %w", v, Version, ErrVersion)
	}
	return nil
}

func (s *State) valid() bool {
	ok := s.Name != "" && s.Queues >= 1 && s.Queues <= config.MaxLanes && (s.Lanes == 0 || s.Lanes == s.Queues) &&
		(s.Holders == 0 || s.Holders == 1 && s.Lanes != 1) && len(s.Sources) <= underlay.MaxSources && s.Plans >= 0
	if s.Selection == nil {
		return ok && s.Plans == 0
	}
	for _, p := range s.Selection.Plans {
		ok = ok && p.From.IsValid() && !p.From.Is4In6() && p.From.Zone() == ""
	}
	return ok && s.Plans <= len(s.Selection.Plans)
}

// seals of a memfd make it read-only for every process, forever.
const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

// newSealedFile returns a sealed memfd that holds b. The file has no name, and ends with its last descriptor.
func newSealedFile(b []byte) (fd int, err error) {
	fd, err = createMemfd()
	if err != nil {
		return -1, fmt.Errorf("creating a memfd: %w", err)
	}
	for len(b) > 0 && err == nil {
		var n int
		n, err = unix.Write(fd, b)
		b = b[max(n, 0):]
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("writing to a memfd: %w", err), unix.Close(fd))
	}
	return fd, nil
}

// createMemfd returns an empty memfd that cannot be executed. Some hosts allow no other kind (sysctl vm.memfd_noexec, Linux 6.3).
// Older kernels answer EINVAL to the flag.
func createMemfd() (fd int, err error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err = unix.MemfdCreate("ropewalk", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("ropewalk", flags)
	}
	return fd, err
}

// readSealedFile returns the contents of a file of newSealedFile, and closes fd.
func readSealedFile(fd int) ([]byte, error) {
	f := os.NewFile(uintptr(fd), "state")
	defer f.Close()
	if has, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || has&seals != seals {
		return nil, fmt.Errorf("reading the handover state: not a sealed file: %w", errMalformed)
	}
	info, err := f.Stat()
	if err != nil || info.Size() > maxStateSize {
		return nil, errors.Join(errMalformed, err)
	}
	b := make([]byte, info.Size())
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, info.Size()), b); err != nil {
		return nil, fmt.Errorf("reading the handover state: %w", err)
	}
	return b, nil
}
