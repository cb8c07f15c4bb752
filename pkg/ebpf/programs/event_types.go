// SPDX-License-Identifier: Apache-2.0

package programs

// Event is a counter of the spread and gather programs. bpf/include/spread_events.h lists all of them. They count
// packets of configured tunnels, and frames with too many VLAN tags to be read.
type Event uint8

// String returns the event's stable name, as used in metric labels: lower case with underscores.
func (e Event) String() string { return textAt(eventNames[:], int(e), "unknown") }

// Help returns a short description for operators.
func (e Event) Help() string { return textAt(eventHelps[:], int(e), "") }

// ClassifyEvent is a counter of Classify, the XDP program that redirects data messages to AF_XDP sockets or CPUs.
// bpf/include/classify_events.h lists all of them. Only packets to the listen port are counted. Dropped packets count under their drop.Reason instead.
type ClassifyEvent uint8

// String returns the event's stable name, as used in metric labels: lower case with underscores.
func (e ClassifyEvent) String() string { return textAt(classifyEventNames[:], int(e), "unknown") }

// GuardClass is the class of an address for the guard: the class of the longest prefix that
// contains it. bpf/include/guard_classes.h lists all of them.
type GuardClass uint8

// String returns the class's stable name, as used in metric labels: lower case with underscores.
func (c GuardClass) String() string { return textAt(guardClassNames[:], int(c), "unknown") }

func textAt(texts []string, i int, otherwise string) string {
	if i < len(texts) {
		return texts[i]
	}
	return otherwise
}
