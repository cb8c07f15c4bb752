// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/noise"
)

// keyring is a directory with a node's keys, of which the one of the lowest generation is in use. While the key changes,
// there is a second. Which one it is, is told by their names alone, so that the removal of one file is the change.
type keyring struct {
	dir     string
	rand    io.Reader
	current generation
	next    generation // number 0: none
}

// generation is one of a node's keys.
type generation struct {
	number int64
	key    noise.PrivateKey
}

// public is the key's, zero for none.
func (g generation) public() noise.PublicKey {
	if g.number == 0 {
		return noise.PublicKey{}
	}
	return g.key.Public()
}

// file is the key's, in base64, as `wg genkey` writes it.
func (g generation) file() string {
	if g.number == 1 {
		return keyFile
	}
	return fmt.Sprintf("private-%d.key", g.number)
}

// generationOf parses the name of a file. Other files are none of the keyring's.
func generationOf(name string) (int64, bool) {
	if name == keyFile {
		return 1, true
	}
	text, isKey := strings.CutSuffix(name, ".key")
	text, isOurs := strings.CutPrefix(text, "private-")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, isKey && isOurs && err == nil && n > 1 && generation{number: n}.file() == name
}

// openKeyring reads a node's keys, and makes one, of the first generation or a later one that is asked for, only where
// there is none: a reboot changes no identity. A file that is no key, or that others may read, is an error and stays as
// it is.
func openKeyring(dir string, asked int64, rand io.Reader) (*keyring, error) {
	r := &keyring{dir: dir, rand: rand}
	numbers, err := r.generations()
	if err != nil {
		return nil, fmt.Errorf("looking for the node's key: %w", err)
	}
	if len(numbers) == 0 {
		r.current, err = r.create(max(asked, 1))
		return r, err
	}
	for i, g := range []*generation{&r.current, &r.next} {
		if i == len(numbers) {
			break
		}
		g.number = numbers[i]
		if g.key, err = readKey(r.path(*g)); err != nil {
			return nil, fmt.Errorf("reading the node's key %s: %w", r.path(*g), err)
		}
	}
	return r, nil
}

// generations returns the numbers of the generations that there are, in order.
func (r *keyring) generations() (numbers []int64, err error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if n, ok := generationOf(e.Name()); ok {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers, err
}

func (r *keyring) path(g generation) string { return filepath.Join(r.dir, g.file()) }

// create makes a key and keeps it before anybody hears of it. Where another agent was faster, that one's is it.
func (r *keyring) create(number int64) (generation, error) {
	g := generation{number: number}
	var err error
	if g.key, err = noise.NewPrivateKey(r.rand); err != nil {
		return generation{}, err
	}
	if err = writeKey(r.dir, r.path(g), g.key); errors.Is(err, fs.ErrExist) {
		g.key, err = readKey(r.path(g))
	}
	if err != nil {
		return generation{}, fmt.Errorf("keeping the node's key %s: %w", r.path(g), err)
	}
	return g, nil
}

// prepare makes the next key, which is to be of that generation.
func (r *keyring) prepare(asked int64) (err error) {
	r.next, err = r.create(max(asked, r.current.number+1))
	return err
}

// advance forgets the key in use for good, what a crash has left of its making included. The next is the one. After an
// error it may be called again.
func (r *keyring) advance() error {
	left, err := filepath.Glob(filepath.Join(r.dir, keyFile+".*"))
	for _, path := range append(left, r.path(r.current)) {
		if err == nil {
			err = os.Remove(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err = cmp.Or(err, syncDir(r.dir)); err != nil {
		return fmt.Errorf("removing the node's old key: %w", err)
	}
	r.current, r.next = r.next, generation{}
	return nil
}
