// SPDX-License-Identifier: Apache-2.0

package hostnet

import (
	"bytes"
	"fmt"
	"os"
)

// srcValidMark makes reverse path filtering consider a packet's mark (Linux's ip-sysctl documentation,
// src_valid_mark).
const srcValidMark = "/proc/sys/net/ipv4/conf/all/src_valid_mark"

// SrcValidMark reports whether net.ipv4.conf.all.src_valid_mark is set.
func SrcValidMark() (bool, error) {
	b, err := os.ReadFile(srcValidMark)
	if err != nil {
		return false, fmt.Errorf("reading src_valid_mark: %w", err)
	}
	return !bytes.Equal(bytes.TrimSpace(b), []byte("0")), nil
}

// SetSrcValidMark sets or clears net.ipv4.conf.all.src_valid_mark.
func SetSrcValidMark(on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	f, err := os.OpenFile(srcValidMark, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		f.Close()
	}
	if err != nil {
		return fmt.Errorf("setting src_valid_mark to %s: %w", value, err)
	}
	return nil
}
