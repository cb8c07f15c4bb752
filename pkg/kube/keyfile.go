// SPDX-License-Identifier: Apache-2.0

package kube

import (
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

// writeKey makes the file appear, unless another agent was faster.
func writeKey(dir, path string, k noise.PrivateKey) error {
	return writeFileAtomically(dir, keyFile+".*", []byte(k.Base64()+"\n"), func(from string) error { return os.Link(from, path) })
}
