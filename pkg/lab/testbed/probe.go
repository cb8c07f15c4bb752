// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"errors"
	"fmt"
	"os"

	"github.com/ropewalk/ropewalk/pkg/lab/netlab"
)

// Probe checks whether this process can create a Lab with a tunnel. Its error wraps netlab.ErrPrivileges, or
// os.ErrNotExist if there is no /dev/net/tun.
func Probe() error {
	lab, err := netlab.New(DefaultPrefix)
	if err != nil {
		return err
	}
	_, err = lab.Host("probe")
	if err = errors.Join(err, lab.Close()); err != nil {
		return err
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("finding a TUN device: %w", err)
	}
	return nil
}
