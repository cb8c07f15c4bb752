// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"fmt"
	"slices"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// deviceKey is a key of the file for a setting of the device with a fixed default.
type deviceKey struct {
	name  string
	given bool
	reset func()        // stores the default
	text  func() string // the value, if given
}

const listenPortKey = "ListenPort"

// deviceKeys returns the keys that a change of the device may have. The mark is not one: policy routing has its own.
func deviceKeys(dev *config.Device) []deviceKey {
	return []deviceKey{
		keyOf(listenPortKey, &dev.ListenPort, 0),
		keyOf("Spread", &dev.Spread, config.SpreadAuto),
		keyOf("SpreadPorts", &dev.SpreadPorts, spread.DefaultPorts),
		keyOf("Spray", &dev.Spray, config.SprayOff),
		keyOf("Underlay", &dev.Underlay, config.UnderlayAuto),
		keyOf("OuterFragments", &dev.OuterFragments, false),
		keyOf("PostQuantum", &dev.PostQuantum, config.DefaultPostQuantum),
	}
}

func keyOf[T any](name string, field **T, byDefault T) deviceKey {
	return deviceKey{name, *field != nil, func() { *field = &byDefault }, func() string { return fmt.Sprint(**field) }}
}

// fileKeys returns the names of the deviceKeys that a file has.
func fileKeys(conf *conffile.Interface) (names []string) {
	dev := config.Device{ListenPort: conf.ListenPort}
	conf.AddOwnSettings(&dev)
	for _, k := range deviceKeys(&dev) {
		if k.given {
			names = append(names, k.name)
		}
	}
	return names
}

// resetRemoved gives settings their defaults whose keys the file had when it was last applied, and has no more.
func resetRemoved(dev *config.Device, had []string) {
	for _, k := range deviceKeys(dev) {
		if !k.given && slices.Contains(had, k.name) {
			k.reset()
		}
	}
}

// deviceReport is the control socket's report of a device besides its status. Fields are zero for
// other daemons than ropewalk.
type deviceReport struct {
	TUN            struct{ NetNS hostnet.Namespace } `json:"tun"`
	Names          config.NameReport                 `json:"names"`
	Spread         *config.SpreadReport              `json:"spread"`
	Path           *config.UnderlayReport            `json:"path"`
	OuterFragments *config.OuterFragments            `json:"outer_fragments"`
	PostQuantum    *config.PostQuantumReport         `json:"post_quantum"`
	AbsentLinks    map[string]int                    `json:"absent_links"`
}

// values returns the present settings by key, as a file has them.
func (r *deviceReport) values() map[string]string {
	values := map[string]string{}
	if r.Spread != nil {
		values["Spread"] = r.Spread.Mode.String()
		values["SpreadPorts"] = r.Spread.Ports().String()
		values["Spray"] = r.Spread.Spray.String()
	}
	if r.Path != nil {
		values["Underlay"] = r.Path.Mode.String()
	}
	if r.OuterFragments != nil {
		values["OuterFragments"] = r.OuterFragments.String()
	}
	if r.PostQuantum != nil {
		values["PostQuantum"] = r.PostQuantum.Policy.String()
	}
	return values
}
