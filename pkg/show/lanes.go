// SPDX-License-Identifier: Apache-2.0

package show

import (
	"fmt"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/config"
)

// lanes prints what a device has that wg(8) does not know of.
func (p *printer) lanes(st *config.Status) {
	text := st.Spread.String()
	if st.Spread != config.SpreadOff {
		text += ", ports " + st.SpreadPorts.String()
	}
	p.field("spread", text)
	p.field("lanes", strconv.Itoa(st.Lanes))
}

// peerSpreadText is "16 ports, planned", or "off" with the reason.
func peerSpreadText(s config.PeerSpread) string {
	switch {
	case !s.Active && s.Reason == "":
		return off
	case !s.Active:
		return off + " (" + s.Reason + ")"
	}
	text := fmt.Sprintf("%d ports", s.Ports)
	if s.Ports == 1 {
		text = "1 port"
	}
	if s.Planned {
		text += ", planned"
	}
	return text
}
