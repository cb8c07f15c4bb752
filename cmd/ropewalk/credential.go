// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/ropewalk/ropewalk/pkg/conffile"
	"github.com/ropewalk/ropewalk/pkg/noise"
)

// privateKeyCredential is the name of the credential with the interface's private key, as `ropewalk genkey` prints it.
const privateKeyCredential = "private-key"

// useCredential takes the private key from the directory of credentials that the service manager gives to the service
// (systemd.exec(5), LoadCredential=), where there is such a credential. dir is empty when there are none at all.
func useCredential(dir string, f *conffile.File) error {
	if dir == "" {
		return nil
	}
	key, err := conffile.ReadKeyFile[noise.PrivateKey](filepath.Join(dir, privateKeyCredential))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("reading the credential %s: %w", privateKeyCredential, err)
	case key.IsZero():
		return fmt.Errorf("the credential %s is empty", privateKeyCredential)
	case f.Interface.SaveConfig:
		return fmt.Errorf("the credential %s is not for a file with SaveConfig = true, which would write it into that file", privateKeyCredential)
	case f.Interface.PrivateKey != nil && *f.Interface.PrivateKey != key:
		return fmt.Errorf("the file has a PrivateKey that is not that of the credential %s: remove one", privateKeyCredential)
	}
	f.Interface.PrivateKey = &key
	return nil
}
