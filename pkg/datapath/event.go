// SPDX-License-Identifier: Apache-2.0

package datapath

// Event is something that happened to packets of a configured tunnel: one of the closed list in
// bpf/include/spread_events.h. Packets of others are never counted.
type Event uint8

// String returns the event's stable name, as used in metric labels: lower case with underscores.
func (e Event) String() string { return textOf(eventNames[:], int(e), "unknown") }

// Help returns a phrase for operators.
func (e Event) Help() string { return textOf(eventHelps[:], int(e), "") }

// ClassifyEvent is what Classify made of a packet to its port: one of the closed list in bpf/include/classify_events.h.
// Packets that it dropped have a drop.Reason instead, and packets of others are never counted.
type ClassifyEvent uint8

// String returns the event's stable name, as used in metric labels: lower case with underscores.
func (e ClassifyEvent) String() string { return textOf(classifyEventNames[:], int(e), "unknown") }

// Help returns a phrase for operators.
func (e ClassifyEvent) Help() string { return textOf(classifyEventHelps[:], int(e), "") }

func textOf(texts []string, i int, otherwise string) string {
	if i < len(texts) {
		return texts[i]
	}
	return otherwise
}
