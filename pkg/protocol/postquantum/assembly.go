// SPDX-License-Identifier: Apache-2.0

package postquantum

import (
	"bytes"

	"github.com/ropewalk/ropewalk/pkg/protocol/wire"
)

// assembly puts the parts of one message together, in any order. It has memory from the first part until clear.
type assembly struct {
	session *Session // under whose key pair the parts arrive; parts of another session begin anew
	data    []byte
	have    [wire.KEMParts]bool
}

// progress is the effect of a part on an assembly.
type progress uint8

const (
	incomplete    progress = iota
	complete               // all parts have arrived, perhaps before
	contradiction          // the part has arrived before with other bytes
)

// add takes one part.
func (a *assembly) add(s *Session, p *wire.KEMPart) progress {
	if a.session != s {
		*a = assembly{session: s, data: make([]byte, p.Kind.Size())}
	}
	into := a.data[p.Part*wire.KEMPartSize:][:len(p.Data)]
	if a.have[p.Part] && !bytes.Equal(into, p.Data) {
		return contradiction
	}
	copy(into, p.Data)
	a.have[p.Part] = true
	if a.have != [wire.KEMParts]bool{true, true, true} {
		return incomplete
	}
	return complete
}

func (a *assembly) clear() { *a = assembly{} }
