// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
)

// dropCounts are a device's drops by reason.
type dropCounts map[string]uint64

// since returns the increase over an earlier count, without the reasons that have not increased.
// It is nil if the earlier count is not known.
func (c dropCounts) since(before dropCounts) dropCounts {
	if before == nil {
		return nil
	}
	fresh := dropCounts{}
	for reason, n := range c {
		if n > before[reason] {
			fresh[reason] = n - before[reason]
		}
	}
	return fresh
}

// dropsOf counts what the daemon of an interface has dropped so far; nil if unknown, because only ropewalk reports drops.
func dropsOf(iface string) dropCounts {
	c, err := uapi.Dial(iface)
	if err != nil {
		return nil
	}
	defer c.Close()
	var st show.Stats
	if c.Stats(&st) != nil {
		return nil
	}
	return st.AllDrops()
}
