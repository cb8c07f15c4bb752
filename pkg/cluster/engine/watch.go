// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// watchInterval is the time between looks at the control socket.
const watchInterval = time.Second

// Watch calls f when an engine has created the control socket, or removed it, until ctx ends. An engine that takes over keeps the socket, and
// all that the one before was told.
func (c *Client) Watch(ctx context.Context, f func()) {
	for last := c.socket(); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(watchInterval):
		}
		now := c.socket()
		if !isSameSocket(last, now) {
			f()
		}
		last = now
	}
}

// socket returns the file of the control socket; nil: there is none.
func (c *Client) socket() fs.FileInfo {
	info, err := os.Lstat(filepath.Join(string(c.dir()), c.Name+".sock"))
	if err != nil {
		return nil
	}
	return info
}

func isSameSocket(a, b fs.FileInfo) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) // file systems use numbers of inodes again
}

func (c *Client) dir() uapi.Dir {
	if c.Dir == "" {
		return uapi.DefaultDir
	}
	return c.Dir
}
