// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
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
	return useCredentialFile(filepath.Join(dir, privateKeyCredential), f)
}

// useCredentialFile sets the private key of f from a file, if that exists.
func useCredentialFile(path string, f *conffile.File) error {
	key, err := conffile.ReadKeyFile[noise.PrivateKey](path)
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

// addKnownKey sets the private key of a file that has none, for commands outside of the service.
// It takes the key of the running tunnel, or else of the systemd credential with which `systemctl
// start ropewalk@NAME` would bring the interface up. root is the root directory of the host. It
// returns the path of a credential, or "". Of an encrypted credential it only notes that there is
// one.
func addKnownKey(sockets uapi.Dir, root string, i *quick.Interface) (credential string, err error) {
	*i = withPresentKey(sockets, *i)
	if i.File.Interface.PrivateKey != nil {
		return "", nil
	}
	file := *i.File
	i.File = &file
	if err := useCredential(os.Getenv("CREDENTIALS_DIRECTORY"), &file); err != nil || file.Interface.PrivateKey != nil {
		return "", err
	}
	for _, path := range credentialFiles(root, i.Name) {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if strings.Contains(path, encryptedStore) {
			file.KeyElsewhere = true
			return path, nil
		}
		return path, useCredentialFile(path, &file)
	}
	return "", nil
}

// encryptedStore is the name of systemd's directories with encrypted credentials.
const encryptedStore = "credstore.encrypted"

// credentialFiles returns the paths at which systemd looks for the private key of an interface (systemd.exec(5)), with the names that
// docs/install.md has.
func credentialFiles(root, name string) (paths []string) {
	for _, dir := range []string{"etc", "run", "usr/local/lib", "usr/lib"} {
		for _, store := range []string{"credstore", encryptedStore} {
			for _, file := range []string{"ropewalk." + name + "." + privateKeyCredential, "ropewalk." + name} {
				paths = append(paths, filepath.Join(root, dir, store, file))
			}
		}
	}
	return paths
}
