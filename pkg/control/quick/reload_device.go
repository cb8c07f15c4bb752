// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"fmt"
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

// ropewalk reports whether the daemon is a ropewalk, of any version.
func (r *deviceReport) ropewalk() bool { return r.Settings != nil || r.PostQuantum != nil }

// notes says that the daemon is of a version that does not report its settings, so that reload does
// not know which of them change.
func (r *deviceReport) notes(link string) []string {
	if r.Settings != nil || !r.ropewalk() {
		return nil
	}
	return []string{fmt.Sprintf("the daemon of %s is older than this command and does not report its settings, so all settings of the file are applied: `ropewalk upgrade %s` replaces it", link, link)}
}
