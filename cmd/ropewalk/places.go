// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/ropewalk/ropewalk/pkg/datapath/hook"
	"github.com/ropewalk/ropewalk/pkg/doctor"
	"github.com/ropewalk/ropewalk/pkg/quick"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// place is a path that a tunnel uses, for docs/configuration.md.
type place struct{ path, about string }

func places() []place {
	return []place{
		{quick.DefaultDir + "/wg0.conf", "the file; with a private key in it 0600, and the directory 0700"},
		{string(uapi.DefaultDir) + "/wg0.sock", "the control socket of the daemon, 0600, for `wg` and `ropewalk`"},
		{quick.DefaultRunDir + "/wg0.log", "the log of a daemon that `ropewalk up` started by hand, 0600; under systemd it is in the journal"},
		{quick.DefaultRunDir, "what `ropewalk down` has to undo"},
		{hook.DefaultFS + "/ropewalk", "what `ropewalk spread attach` has attached (BPF file system)"},
		{doctor.DefaultRecord, "what `ropewalk doctor --fix` has changed"},
		{"/etc/default/ropewalk", "arguments of `ropewalk up` for all tunnels that systemd runs: `ARGS=`"},
		{"/etc/ropewalk/wg0.env", "the same for one"},
		{"/etc/ropewalk/spread-eth0.conf", "`PORT=` and `ARGS=` of `ropewalk-spread@eth0`"},
		{"/etc/credstore/ropewalk.wg0.private-key", "the private key as systemd's credential"},
	}
}
