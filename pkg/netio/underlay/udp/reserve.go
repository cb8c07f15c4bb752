// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Reservation keeps a port that Open is to bind later: until then Open of others fails with syscall.EADDRINUSE. Nothing reads its socket. The
// zero value reserves nothing. It is for one goroutine at a time. Other processes can have it by its descriptor.
type Reservation struct {
	socket *socket // nil for none
	port   uint16
}

// Set reserves a port in place of the one before; 0 is none. The error for a port in use satisfies errors.Is(err, syscall.EADDRINUSE), and
// leaves the reservation as it was.
func (r *Reservation) Set(port uint16) (err error) {
	if r.socket != nil && r.port == port {
		return nil
	}
	var next *socket
	if port != 0 {
		next, err = openFirst(&Config{Port: port, ReceiveBuffer: 1, SendBuffer: 1, NoGRO: true, NoGSO: true})
		if err != nil {
			return fmt.Errorf("reserving a port: %w", err)
		}
	}
	r.replace(next, port)
	return nil
}

// Duplicate returns a descriptor of the reservation, which lasts until all of them are closed, or none without a reservation.
func (r *Reservation) Duplicate() ([]int, error) {
	if r.socket == nil {
		return nil, nil
	}
	fd, err := duplicate(r.socket.fd)
	if err != nil {
		return nil, err
	}
	return []int{fd}, nil
}

// Adopt continues the reservation of another process, in place of the one before. It owns the descriptor of Duplicate.
func (r *Reservation) Adopt(fd int) error {
	s, port, err := identify(fd)
	if err != nil {
		return errors.Join(fmt.Errorf("taking over the reservation of a port: %w", err), unix.Close(fd))
	}
	r.replace(s, port)
	return nil
}

// replace ends the reservation, and begins the reservation of a socket.
func (r *Reservation) replace(s *socket, port uint16) {
	if r.socket != nil {
		_ = unix.Close(r.socket.fd)
	}
	r.socket, r.port = s, port
}
