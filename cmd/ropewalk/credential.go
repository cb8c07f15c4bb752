// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// privateKeyCredential is the name of the credential that holds the interface's private key in base64.
const privateKeyCredential = "private-key"

// useCredential sets the private key of f from the service's credential (systemd.exec(5), LoadCredential=), if there is one.
// dir is the directory of credentials, or empty if the service has none.
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
		return fmt.Errorf("the credential %s cannot be used with SaveConfig = true, which would write the key into the file", privateKeyCredential)
	case f.Interface.PrivateKey != nil && *f.Interface.PrivateKey != key:
		return fmt.Errorf("PrivateKey in the configuration file differs from the systemd credential %s: remove one of them", privateKeyCredential)
	}
	f.Interface.PrivateKey = &key
	return nil
}
