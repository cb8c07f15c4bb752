// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestPinnedPackageNeedsItsChecksum(t *testing.T) {
	archive := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/linux.deb" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write([]byte("package"))
	}))
	defer archive.Close()
	sum := sha256.Sum256([]byte("package"))
	right := hex.EncodeToString(sum[:])
	for name, c := range map[string]struct {
		p           pinnedPackage
		saved       bool
		unreachable bool
	}{
		"right":   {pinnedPackage{"linux.deb", right}, true, false},
		"changed": {pinnedPackage{"linux.deb", right[2:] + "00"}, false, false},
		"gone":    {pinnedPackage{"other.deb", right}, false, true},
	} {
		dir := t.TempDir()
		err := c.p.download(t.Context(), archive.URL+"/", dir)
		if (err == nil) != c.saved || errors.Is(err, errUnreachable) != c.unreachable {
			t.Errorf("%s: got error %v, want saved %v, unreachable %v", name, err, c.saved, c.unreachable)
		}
		if b, _ := os.ReadFile(filepath.Join(dir, "linux.deb")); (string(b) == "package") != c.saved {
			t.Errorf("%s: the package has %d bytes, want saved %v", name, len(b), c.saved)
		}
	}
	archive.Close()
	if err := (pinnedPackage{"linux.deb", right}).download(t.Context(), archive.URL+"/", t.TempDir()); !errors.Is(err, errUnreachable) {
		t.Errorf("without an archive: got error %v, want %v", err, errUnreachable)
	}
}
