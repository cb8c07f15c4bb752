// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

// CheckSettings returns a warning, worded like Warnings, for each setting that is accepted and surely not meant. The file must be whole:
// one for `wg addconf` may lack a key.
func (f *File) CheckSettings() []string {
	var w warnings
	for _, text := range f.Repeated {
		w.add("%s", text)
	}
	f.checkKeys(&w)
	f.checkSpray(&w)
	f.checkAllowedIPs(&w)
	return w
}

// warnings are texts for the user.
type warnings []string

func (w *warnings) add(format string, args ...any) {
	*w = append(*w, "Warning: "+fmt.Sprintf(format, args...))
}

func (f *File) checkKeys(w *warnings) {
	var own noise.PublicKey
	switch key := f.Interface.PrivateKey; {
	case key != nil && !key.IsZero():
		own = key.Public()
	case f.KeyElsewhere || f.hooksSetKey():
	case len(f.Peers) == 0:
		w.add("neither a PrivateKey nor a [Peer]: the interface will carry nothing")
	default:
		w.add("no PrivateKey in [Interface]: the interface will carry nothing until it has one")
	}
	sections := map[noise.PublicKey]int{}
	for i := range f.Peers {
		key := f.Peers[i].PublicKey
		if key == own && own != (noise.PublicKey{}) {
			w.add("peer %s has the public key of this interface: the PublicKey in [Peer] must be the other end's", key.Base64())
		}
		if sections[key]++; sections[key] == 2 {
			w.add("peer %s has several [Peer] sections: each replaces the settings that it shares with those before", key.Base64())
		}
	}
}

// hooksSetKey reports whether a command of the file seems to set the private key, as in `PostUp = wg set %i private-key FILE`.
func (f *File) hooksSetKey() bool {
	return slices.ContainsFunc(slices.Concat(f.Interface.PreUp, f.Interface.PostUp), func(command string) bool {
		return strings.Contains(command, "private-key") || strings.Contains(command, "setconf")
	})
}

// checkSpray reports Spray together with a Spread that leaves it without effect.
func (f *File) checkSpray(w *warnings) {
	conf := &f.Interface
	if conf.Spread != nil && conf.Spray != nil && conf.Spread.Disables(*conf.Spray) {
		w.add("Spray = %v has no effect with Spread = %v", *conf.Spray, *conf.Spread)
	}
}

// checkAllowedIPs reports prefixes that a later peer takes from an earlier one.
func (f *File) checkAllowedIPs(w *warnings) {
	owners := map[netip.Prefix]noise.PublicKey{}
	for i := range f.Peers {
		p := &f.Peers[i]
		for _, a := range p.AllowedIPs {
			if a.Remove {
				continue
			}
			if before, taken := owners[a.Prefix]; taken && before != p.PublicKey {
				w.add("AllowedIPs: %v of peer %s goes to peer %s, which is later in the file and also has it", a.Prefix, before.Base64(), p.PublicKey.Base64())
			}
			owners[a.Prefix] = p.PublicKey
		}
	}
}
