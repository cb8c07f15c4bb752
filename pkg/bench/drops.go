// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"github.com/ropewalk/ropewalk/pkg/show"
	"github.com/ropewalk/ropewalk/pkg/uapi"
)

// dropCounts are a device's drops by reason.
type dropCounts map[string]uint64

// since is what came on top of an earlier count, without the reasons of which there is nothing new.
func (c dropCounts) since(before dropCounts) dropCounts {
	fresh := dropCounts{}
	for reason, n := range c {
		if n > before[reason] {
			fresh[reason] = n - before[reason]
		}
	}
	return fresh
}

// drops counts what a side's daemon has dropped so far; nothing where it is not ropewalk, which does not say.
func (s *Side) drops() dropCounts {
	c, err := uapi.Dial(s.Iface)
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
