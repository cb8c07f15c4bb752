// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

const (
	keySize    = 44      // bytes of a key in base64
	maxKeyFile = 4 << 10 // bytes; white space may follow the key
)

// errKeyFile describes valid key files. It completes "want …".
var errKeyFile = errors.New("a file with one base64 key, or an empty one for none")

// ReadKeyFile reads a key from a file, as `wg set … private-key` does. Only white space may follow the key. An empty file is the zero
// key. Errors never quote the file. The error for invalid contents describes valid ones.
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

// setKeyFile stores the key in a file.
func setKeyFile[K noise.Key](field **K, path string) (want string) {
	if _, err := noise.ParseBase64[K](path); err == nil {
		return "the name of a file with the key, because arguments are visible in process lists; got a key"
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
