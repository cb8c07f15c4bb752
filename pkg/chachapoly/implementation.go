// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"fmt"
	"sync"
)

// Generic is the implementation that runs everywhere: golang.org/x/crypto, message by message.
const Generic = "generic"

// implementation is one way to seal and open. worth tells whether a set is big enough for it; smaller ones are treated
// as by Generic, whose functions are nil.
type implementation struct {
	name  string
	seal  func(*secret, *Scratch, []Message)
	open  func(*secret, *Scratch, []Message)
	worth func([]Message) bool
}

var generic = &implementation{name: Generic}

// implementations are probed once: what the CPU lacks, or computes wrong, is not in the list.
var implementations = sync.OnceValue(func() []*implementation {
	return append(trainImplementations(), generic)
})

// Implementations lists what runs on this CPU, fastest first; Generic is always the last.
func Implementations() []string {
	var names []string
	for _, i := range implementations() {
		names = append(names, i.name)
	}
	return names
}

// Implementation is the name of what NewKey uses, for doctor and metrics.
func Implementation() string { return implementations()[0].name }

func lookup(name string) (*implementation, error) {
	for _, i := range implementations() {
		if i.name == name {
			return i, nil
		}
	}
	return nil, fmt.Errorf("choosing the cipher's implementation: this CPU does not run %q", name)
}
