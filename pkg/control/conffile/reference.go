// SPDX-License-Identifier: Apache-2.0

package conffile

// Key is the documentation of a key. Its texts are Markdown.
type Key struct {
	Section string // "Interface" or "Peer"
	Name    string
	Origin  string // the program that introduced it: "wg", "wg-quick" or "ropewalk"
	Values  string // valid values
	Default string // the value if it is not given
	About   string
	Reload  bool // whether `ropewalk reload` applies a change
}

// Keys lists all keys that files of the Quick dialect may have, in the order of their
// documentation. Keys whose origin is wg are the keys of the WG dialect. The caller owns the list.
func Keys() []Key {
	var all []Key
	add := func(section, origin string, keys []key) {
		for _, k := range keys {
			all = append(all, Key{
				Section: section, Name: k.name, Origin: origin,
				Values: k.doc.values, Default: k.doc.defaultValue, About: k.doc.about,
				Reload: !k.doc.restart,
			})
		}
	}
	add("Interface", "wg", interfaceKeys())
	add("Interface", "wg-quick", quickKeys())
	add("Interface", "ropewalk", ropewalkKeys())
	add("Peer", "wg", peerKeys())
	add("Peer", "ropewalk", ropewalkPeerKeys())
	return all
}
