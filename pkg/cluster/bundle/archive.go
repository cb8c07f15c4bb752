// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

// archive is the tar.gz that is being written. Several goroutines may add files.
type archive struct {
	dir  string
	time time.Time
	gz   *gzip.Writer
	tar  *tar.Writer

	mu    sync.Mutex
	index []entry
	err   error // the first error of writing
}

// entry is a line of the index.
type entry struct {
	name   string
	size   int
	reason string // why the file is missing or not whole; "": it is whole
}

func newArchive(w io.Writer, dir string) *archive {
	gz := gzip.NewWriter(w)
	return &archive{dir: dir, time: time.Now(), gz: gz, tar: tar.NewWriter(gz)}
}

// add adds what could be had of a file, without secrets. err says why it is not whole.
func (a *archive) add(name string, data []byte, err error) {
	data = redact(data)
	e := entry{name: name, size: len(data)}
	if err != nil {
		e.reason = strings.Join(strings.Fields(string(redact([]byte(err.Error())))), " ")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.index = append(a.index, e)
	if err == nil || len(data) > 0 {
		a.write(name, data)
	}
}

func (a *archive) write(name string, data []byte) {
	if a.err != nil {
		return
	}
	header := &tar.Header{Name: path.Join(a.dir, name), Mode: 0o600, Size: int64(len(data)), ModTime: a.time, Format: tar.FormatPAX}
	if a.err = a.tar.WriteHeader(header); a.err == nil {
		_, a.err = a.tar.Write(data)
	}
}

func (a *archive) summary() (s Summary) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.index {
		s.count(e.reason != "")
	}
	return s
}

func (s *Summary) count(missing bool) {
	s.Files++
	if missing {
		s.Missing++
	}
}

// close writes the index and ends the archive.
func (a *archive) close(header string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	slices.SortFunc(a.index, func(x, y entry) int { return strings.Compare(x.name, y.name) })
	var b bytes.Buffer
	b.WriteString(header)
	for _, e := range a.index {
		if e.reason != "" {
			fmt.Fprintf(&b, "MISSING  %s: %s\n", e.name, e.reason)
		}
	}
	for _, e := range a.index {
		if e.reason == "" {
			fmt.Fprintf(&b, "%8d bytes  %s\n", e.size, e.name)
		}
	}
	a.write("index.txt", b.Bytes())
	return errors.Join(a.err, a.tar.Close(), a.gz.Close())
}
