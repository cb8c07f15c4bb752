// SPDX-License-Identifier: Apache-2.0

package datapath

// Event is something that happened to packets of a configured tunnel: one of the closed list in
// bpf/include/spread_events.h. Packets of others are never counted.
type Event uint8

// String returns the event's stable name, as used in metric labels: lower case with underscores.
func (e Event) String() string {
	if int(e) < len(eventNames) {
		return eventNames[e]
	}
	return "unknown"
}

// Help returns a phrase for operators.
func (e Event) Help() string {
	if int(e) < len(eventHelps) {
		return eventHelps[e]
	}
	return ""
}
