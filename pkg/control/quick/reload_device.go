// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"slices"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

const listenPortKey = "ListenPort"

// fileKeys returns the names of the settings of the device with a fixed default that a file has. The mark has none: policy routing chooses it.
func fileKeys(conf *conffile.Interface) (names []string) {
	if conf.ListenPort != nil {
		names = append(names, listenPortKey)
	}
	for _, s := range config.Table() {
		if _, given := s.Text(&conf.Settings); given {
			names = append(names, s.Name)
		}
	}
	return names
}

// resetRemoved gives settings their defaults whose keys the file had when it was last applied, and has no more.
func resetRemoved(dev *config.Device, had []string) {
	if dev.ListenPort == nil && slices.Contains(had, listenPortKey) {
		dev.ListenPort = new(uint16)
	}
	var defaults config.Settings
	for _, s := range config.Table() {
		if slices.Contains(had, s.Name) {
			_ = s.Set(&defaults, s.Default) // a valid value
		}
	}
	dev.Fill(&defaults)
}

// deviceReport is the control socket's report of a device besides its status. Fields are zero for
// other daemons than ropewalk.
type deviceReport struct {
	TUN         struct{ NetNS hostnet.Namespace } `json:"tun"`
	Names       config.NameReport                 `json:"names"`
	Settings    map[string]string                 `json:"settings"` // by key, as a file has them
	PostQuantum *config.PostQuantumReport         `json:"post_quantum"`
	AbsentLinks map[string]int                    `json:"absent_links"`
}
