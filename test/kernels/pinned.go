// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"time"
)

// pinnedPackage is a package in Ubuntu's archive. Packages of a release, unlike its updates, stay
// there as long as the release does.
type pinnedPackage struct{ path, sha256 string }

const (
	ubuntuArchive = "http://archive.ubuntu.com/ubuntu/pool/main/l/linux/"
	// maxPackage bounds the size of a package in bytes.
	maxPackage = 100 << 20
	// downloadTimeout is for one package.
	downloadTimeout = 3 * time.Minute
)

// The kernels with which two releases of Ubuntu began. The modules of the tests are in linux-modules.
var (
	jammy = []pinnedPackage{
		{
			"linux-image-unsigned-5.15.0-25-generic_5.15.0-25.25_amd64.deb",
			"ac69df20790c48217eb1386ef81fd10d3f20a4ede4dab81cc107c65d29549fa0",
		},
		{
			"linux-modules-5.15.0-25-generic_5.15.0-25.25_amd64.deb",
			"d0ba4087d9e1d497925b3481d3531fba6c2a852855f8019d73b0b1385aa4da1f",
		},
	}
	noble = []pinnedPackage{
		{
			"linux-image-unsigned-6.8.0-31-generic_6.8.0-31.31_amd64.deb",
			"35115ceb5ddc1e73034a73d6b064b9c6d38c534f20279fd7229c510515b931d8",
		},
		{
			"linux-modules-6.8.0-31-generic_6.8.0-31.31_amd64.deb",
			"3f17f2c279257eb50e40da44390bdf8272c440ca078831c348773d1314b5c2fe",
		},
	}
)

func (s series) isPinned() bool { return len(s.pinned) > 0 }

// errUnreachable means that the archive of a pinned kernel cannot be reached from here.
var errUnreachable = errors.New("the archive is unreachable")

// fetchPinned fetches a kernel of Ubuntu. The error satisfies errors.Is(err, errUnreachable) if there was no complete answer.
func (f *fetcher) fetchPinned(ctx context.Context, s series) (*unpacked, error) {
	f.logf("fetching Linux %s of Ubuntu", s.name)
	return f.replace(ctx, s, func(dir string) error {
		for _, p := range s.pinned {
			if err := p.download(ctx, ubuntuArchive, dir); err != nil {
				return err
			}
		}
		return nil
	})
}

// download saves the package in dir if its checksum is right.
func (p pinnedPackage) download(ctx context.Context, archive, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	b, err := get(ctx, archive+p.path)
	if err != nil {
		return fmt.Errorf("downloading %s: %w", p.path, err)
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != p.sha256 {
		return fmt.Errorf("downloading %s: got SHA-256 %x, want %s", p.path, sum, p.sha256)
	}
	return os.WriteFile(filepath.Join(dir, path.Base(p.path)), b, 0o644)
}

// get returns the body of an answer.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%w: HTTP status %s", errUnreachable, resp.Status)
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.LimitReader(resp.Body, maxPackage)); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return b.Bytes(), nil
}
