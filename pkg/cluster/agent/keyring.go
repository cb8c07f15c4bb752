// SPDX-License-Identifier: Apache-2.0

package agent

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

	"github.com/ropewalk/ropewalk/pkg/cluster/v1alpha1"
	"github.com/ropewalk/ropewalk/pkg/netio/atomicfile"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// keyring is a directory with a node's keys. The key of the lowest generation is in use. During a key change there is a second
// one. The file names alone tell which is which, so that removing one file is the change.
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

// public returns the public key, or zero for none.
func (g generation) public() noise.PublicKey {
	if g.number == 0 {
		return noise.PublicKey{}
	}
	return g.key.Public()
}

// publicKeyOf returns the public key of a generation, or "" for none.
func publicKeyOf(g generation) v1alpha1.PublicKey {
	if g.number == 0 {
		return ""
	}
	return v1alpha1.PublicKey(g.public().Base64())
}

// file returns the file name. The file has the key in base64, as `wg genkey` writes it.
func (g generation) file() string {
	if g.number == 1 {
		return keyFile
	}
	return fmt.Sprintf("private-%d.key", g.number)
}

// generationOf parses a file name. It returns false for files that are no keys.
func generationOf(name string) (int64, bool) {
	if name == keyFile {
		return 1, true
	}
	text, isKey := strings.CutSuffix(name, ".key")
	text, isOurs := strings.CutPrefix(text, "private-")
	n, err := strconv.ParseInt(text, 10, 64)
	return n, isKey && isOurs && err == nil && n > 1 && generation{number: n}.file() == name
}

// openKeyring reads a node's keys. It generates one, of the first or of the requested generation, only if there is none: a
// reboot must not change the node's identity. A file that is no key, or that others may read, is an error and stays untouched.
func openKeyring(dir string, requested int64, rand io.Reader) (*keyring, error) {
	r := &keyring{dir: dir, rand: rand}
	numbers, err := r.generations()
	if err != nil {
		return nil, fmt.Errorf("finding the node's key: %w", err)
	}
	if len(numbers) == 0 {
		if r.current, err = r.create(max(requested, 1)); err != nil {
			return nil, err
		}
		return r, nil
	}
	for i, g := range []*generation{&r.current, &r.next} {
		if i == len(numbers) {
			break
		}
		g.number = numbers[i]
		if g.key, err = readKey(r.path(*g)); err != nil {
			return nil, fmt.Errorf("reading the node's key from %s: %w", r.path(*g), err)
		}
	}
	return r, nil
}

// generations returns the numbers of all generations in ascending order.
func (k *keyring) generations() (numbers []int64, err error) {
	entries, err := os.ReadDir(k.dir)
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

func (k *keyring) path(g generation) string { return filepath.Join(k.dir, g.file()) }

// create generates a key and stores it before it is used. If another agent has just stored one, it returns that one.
func (k *keyring) create(number int64) (generation, error) {
	g := generation{number: number}
	var err error
	if g.key, err = noise.NewPrivateKey(k.rand); err != nil {
		return generation{}, err
	}
	if err = writeKey(k.path(g), g.key); errors.Is(err, fs.ErrExist) {
		g.key, err = readKey(k.path(g))
	}
	if err != nil {
		return generation{}, fmt.Errorf("storing the node's key in %s: %w", k.path(g), err)
	}
	return g, nil
}

// public returns the public keys of all generations.
func (k *keyring) public() []noise.PublicKey {
	keys := []noise.PublicKey{k.current.public()}
	if k.next.number != 0 {
		keys = append(keys, k.next.public())
	}
	return keys
}

// prepare creates the next key, of at least the requested generation.
func (k *keyring) prepare(requested int64) (err error) {
	k.next, err = k.create(max(requested, k.current.number+1))
	return err
}

// advance deletes the current key, including the temporary files of a crash, and makes the next one the current key. After an
// error it may be called again.
func (k *keyring) advance() error {
	left, err := filepath.Glob(filepath.Join(k.dir, "private*.key.*"))
	for _, path := range append(left, k.path(k.current)) {
		if err == nil {
			err = os.Remove(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err = cmp.Or(err, atomicfile.SyncDir(k.dir)); err != nil {
		return fmt.Errorf("removing the node's old key: %w", err)
	}
	k.current, k.next = k.next, generation{}
	return nil
}
