// SPDX-License-Identifier: Apache-2.0

package uapi

// Features returns what this version understands beyond WireGuard's protocol: keys of set=1, keys of other operations, and operations.
// Stats of a daemon have them, for clients of another version.
func Features() []string {
	return []string{
		"set." + keySpread, "set." + keySpreadPorts, "set." + keySpray, "set." + keyUnderlay, "set." + keyFragments, "set." + keyPostQuantum,
		"set." + keyName, "set." + keyEndpointName,
		"get.public_key", "probe.public_key", "flows", "log",
	}
}
