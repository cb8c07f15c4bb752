// SPDX-License-Identifier: Apache-2.0

package chachapoly

import "sync"

// Generic is the implementation that runs everywhere: golang.org/x/crypto, message by message.
const Generic = "generic"

// implementation is one row of the table of implementations. Each architecture lists its own in vectorImplementations.
type implementation struct {
	name      string
	supported func() bool // the CPU has the instructions
	seal      func(*secret, *Scratch, []Message)
	open      func(*secret, *Scratch, []Message)
}

var generic = &implementation{
	name:      Generic,
	supported: func() bool { return true },
	seal:      sealEach,
	open:      openEach,
}

// tested are the implementations that the CPU supports and computes correctly, in the table's
// order, and the names of those it computes wrongly.
var tested = sync.OnceValues(func() (list []*implementation, failed []string) {
	list, failed = checked(vectorImplementations)
	return append(list, generic), failed
})

func implementations() []*implementation {
	list, _ := tested()
	return list
}

func checked(table []*implementation) (list []*implementation, failed []string) {
	for _, i := range table {
		switch {
		case !i.supported():
		case selfTest(i):
			list = append(list, i)
		default:
			failed = append(failed, i.name)
		}
	}
	return list, failed
}

// FailedSelfTest lists the implementations that are left out because this CPU computes them wrongly, for doctor.
func FailedSelfTest() []string {
	_, failed := tested()
	return failed
}
