// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// keyFile is the file name of a node's first private key.
const keyFile = "private.key"

// maxKeyFile bounds how many bytes are read of a key file.
const maxKeyFile = 1024

func readKey(path string) (noise.PrivateKey, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0) // do not block on a FIFO
	if err != nil {
		return noise.PrivateKey{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return noise.PrivateKey{}, err
	}
	if !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 {
		return noise.PrivateKey{}, fmt.Errorf("the file mode is %s: want a regular file that only its owner can read (chmod 600); removing the file "+
			"gives the node a new identity", st.Mode())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return noise.PrivateKey{}, err
	}
	defer clear(text)
	k, err := noise.ParseBase64[noise.PrivateKey](strings.TrimSpace(string(text)))
	if err == nil && k.IsZero() {
		err = fmt.Errorf("%w: all bytes are zero; without the file the node gets a new identity", noise.ErrKeyFormat)
	}
	return k, err
}

// writeKey creates the file atomically. It fails with fs.ErrExist if another agent was faster.
func writeKey(path string, k noise.PrivateKey) error {
	return atomicfile.Create(path, []byte(k.Base64()+"\n"))
}
