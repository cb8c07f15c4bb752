// SPDX-License-Identifier: Apache-2.0

package uapi

import "github.com/ropewalk/ropewalk/pkg/protocol/config"

// Features returns what this version understands beyond WireGuard's protocol: keys of set=1, keys of other operations, and operations.
// A value that a key has got in a later release follows the key.
// Stats of a daemon have them, for clients of another version.
func Features() []string {
	features := []string{"set." + keyName, "set." + keyEndpointName, "set." + keyPostQuantum + "." + config.PostQuantumForget, "get.public_key", "probe.public_key", "flows", "log"}
	for _, s := range config.Table() { // also keyPostQuantum
		features = append(features, "set."+s.Key())
	}
	return features
}
