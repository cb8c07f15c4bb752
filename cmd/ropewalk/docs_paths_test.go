// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/ebpf/hook"
	"github.com/ropewalk/ropewalk/pkg/observe/doctor"
)

// pathInfo describes a path that a tunnel uses. Its text is Markdown.
type pathInfo struct{ path, about string }

// paths lists all of them, for docs/configuration.md.
func paths() []pathInfo {
	return []pathInfo{
		{quick.DefaultDir + "/wg0.conf", "configuration; mode 0600 if it holds a private key, and 0700 for the directory"},
		{string(uapi.DefaultDir) + "/wg0.sock", "control socket of the daemon for `wg` and `ropewalk`, mode 0600"},
		{quick.DefaultRunDir + "/wg0.log", "log of a daemon that `ropewalk up` or `ropewalk run --daemon` started outside systemd, mode 0600; systemd's is in the journal. `ropewalk down` removes it; after a failed `up` it stays until the next one"},
		{quick.DefaultRunDir + "/wg0.endpoints", "addresses of the peers with a session, mode 0600, without secrets. A killed daemon leaves it, and the next one renews the sessions. A daemon that ends in order leaves in it which peers had post-quantum keys, and removes it if none had"},
		{quick.DefaultRunDir + "/wg0.keep.lock", "lock of the `ropewalk run --keep` whose daemon has the tunnel"},
		{quick.DefaultRunDir, "state that `ropewalk down` needs to undo `ropewalk up`"},
		{hook.DefaultBPFFS + "/ropewalk", "pins of the programs that `ropewalk spread attach` attached (BPF file system)"},
		{doctor.DefaultUndoRecord, "the settings that `ropewalk doctor --fix` changed, with their old values"},
		{"/etc/default/ropewalk", "`ARGS=`: arguments of `ropewalk up` for all tunnels that systemd runs"},
		{"/etc/ropewalk/wg0.env", "the same for one tunnel"},
		{"/etc/ropewalk/spread-eth0.conf", "`PORT=` and `ARGS=` of `ropewalk-spread@eth0`"},
		{"/etc/ropewalk/engine-ropewalk0.env", "`ARGS=` of `ropewalk-engine@ropewalk0`: arguments of `ropewalk run`"},
		{"/etc/credstore/ropewalk.wg0.private-key", "the private key as a systemd credential"},
	}
}
