// SPDX-License-Identifier: Apache-2.0

package chachapoly

import (
	"fmt"
	"sync"
)

// Generic is the implementation that runs everywhere: golang.org/x/crypto, message by message.
const Generic = "generic"

// implementation is one implementation of sealing and opening. suits reports whether a set of messages is large
// enough for it; smaller sets are processed as by Generic, whose functions are nil.
type implementation struct {
	name  string
	seal  func(*secret, *Scratch, []Message)
	open  func(*secret, *Scratch, []Message)
	suits func([]Message) bool
}

var generic = &implementation{name: Generic}

// implementations are probed once; the list excludes those that the CPU does not support or computes wrongly.
var implementations = sync.OnceValue(func() []*implementation {
	return append(vectorImplementations(), generic)
})

// Implementations lists the implementations that this CPU supports, fastest first; Generic is always the last.
func Implementations() []string {
	var names []string
	for _, i := range implementations() {
		names = append(names, i.name)
	}
	return names
}

// Implementation is the name of the implementation that NewKey uses, for doctor and metrics.
func Implementation() string { return implementations()[0].name }

func lookup(name string) (*implementation, error) {
	for _, i := range implementations() {
		if i.name == name {
			return i, nil
		}
	}
	return nil, fmt.Errorf("selecting the cipher implementation: this CPU does not support %q", name)
}
