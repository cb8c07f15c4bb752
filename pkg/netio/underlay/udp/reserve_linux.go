// SPDX-License-Identifier: Apache-2.0

package udp

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Reservation keeps a port that Open is to bind later: until then Open of others fails with syscall.EADDRINUSE. Nothing reads its socket. The
// zero value reserves nothing. It is for one goroutine at a time.
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
	if r.socket != nil {
		_ = unix.Close(r.socket.fd)
	}
	r.socket, r.port = next, port
	return nil
}
