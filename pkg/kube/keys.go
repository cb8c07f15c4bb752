// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/noise"
)

// keyFile is the file of a node's first private key.
const keyFile = "private.key"

// maxKeyFile bounds what is read of it.
const maxKeyFile = 1024

func readKey(path string) (noise.PrivateKey, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0) // which a FIFO does not hold up
	if err != nil {
		return noise.PrivateKey{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return noise.PrivateKey{}, err
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return noise.PrivateKey{}, fmt.Errorf("its mode is %s: want a file that nobody else may read (chmod 600), or remove it, "+
			"which gives the node another identity", st.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return noise.PrivateKey{}, err
	}
	defer clear(text)
	k, err := noise.ParseBase64[noise.PrivateKey](strings.TrimSpace(string(text)))
	if err == nil && k.IsZero() {
		err = noise.ErrKeyFormat
	}
	return k, err
}

// writeKey makes the file appear whole or not at all, whenever the power goes.
func writeKey(dir, path string, k noise.PrivateKey) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, keyFile+".*") // whose mode is 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(k.Base64() + "\n")
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Link(f.Name(), path) // fails where another agent was faster
	}
	return errors.Join(err, os.Remove(f.Name()), syncDir(dir))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
