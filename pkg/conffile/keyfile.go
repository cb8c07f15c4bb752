// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/noise"
)

const (
	keySize    = 44      // bytes of a key in base64
	maxKeyFile = 4 << 10 // bytes, of which a key takes 44 and white space may take the rest
)

// errKeyFile is what a key file should have been.
var errKeyFile = errors.New("a file with one base64 key, or an empty one for none")

// ReadKeyFile reads a file as `wg set … private-key` does: a key that only white space follows, or nothing, which is the
// zero key. Errors do not hold what the file holds; wrong contents are such that describe what they should be.
func ReadKeyFile[K noise.Key](path string) (key K, err error) {
	f, err := os.Open(path)
	if err != nil {
		return key, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	switch {
	case err != nil:
		return key, err
	case len(text) == 0:
		return key, nil
	case len(text) < keySize || len(text) == maxKeyFile || strings.Trim(string(text[keySize:]), space) != "":
		return key, errKeyFile
	}
	if key, err = noise.ParseBase64[K](string(text[:keySize])); err != nil {
		return *new(K), errKeyFile
	}
	return key, nil
}

// setKeyFile stores the key that a file holds.
func setKeyFile[K noise.Key](field **K, path string) (want string) {
	if _, err := noise.ParseBase64[K](path); err == nil {
		return "the name of a file that holds the key, so that it is not seen among the processes; got a key"
	}
	k, err := ReadKeyFile[K](path)
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Sprintf("%v; %.60q: %v", errKeyFile, path, pathErr.Err)
	}
	if err != nil {
		return err.Error()
	}
	*field = &k
	return ""
}
