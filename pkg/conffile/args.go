// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/config"
)

// ArgError is one thing wrong with the words of `set`. Its text never holds what might be a secret key.
type ArgError struct {
	Word  string   // the keyword, or a word that is none; empty when it might be a secret
	Known []string // the keywords that could stand there, when Word is none of them
	Fault string   // what is wrong otherwise
}

// Error is "allowed-ips: want addresses …" or "invalid argument "per"".
func (e *ArgError) Error() string {
	switch {
	case e.Known != nil && e.Word == "":
		return "invalid argument"
	case e.Known != nil:
		return fmt.Sprintf("invalid argument %q", e.Word)
	}
	return e.Word + ": " + e.Fault
}

// keyword is one word of `set`, which its value follows unless bare is set.
type keyword struct {
	name   string
	peer   bool                                           // of the peer before it, not of the device
	secret bool                                           // the value stays out of errors
	bare   bool                                           // has no value
	set    func(p *argParser, value string) (want string) // as of key
}

// keywords lists them in the order of wg(8)'s usage text, ropewalk's own last of each part.
func keywords() []keyword {
	file := func(set func(*parser, string) string) func(*argParser, string) string {
		return func(p *argParser, value string) string { return set(&p.parser, value) }
	}
	return []keyword{
		{name: "listen-port", set: file(interfaceKeys()[1].set)},
		{name: "fwmark", set: file(setFwMark)},
		{name: "private-key", secret: true, set: func(p *argParser, path string) string {
			return setKeyFile(&p.file.Interface.PrivateKey, path)
		}},
		{name: "spread", set: file(setSpread)},
		{name: "spread-ports", set: file(setSpreadPorts)},
		{name: "underlay", set: file(setUnderlay)},
		{name: "rx-cpus", set: file(setReceiveCPUs)},
		{name: "peer", set: func(p *argParser, value string) string { return p.addPeer(value) }},
		{name: "remove", peer: true, bare: true, set: func(p *argParser, _ string) string {
			p.extra().remove = true
			return ""
		}},
		{name: "preshared-key", peer: true, secret: true, set: func(p *argParser, path string) string {
			return setKeyFile(&p.peer().PresharedKey, path)
		}},
		{name: "endpoint", peer: true, set: file(setEndpoint)},
		{name: "persistent-keepalive", peer: true, set: file(setKeepalive)},
		{name: "allowed-ips", peer: true, set: setAllowedIPs},
	}
}

// Keywords returns the words that may follow: those of a device, and with peer set those of a peer.
func Keywords(peer bool) []string {
	var names []string
	for _, k := range keywords() {
		if k.peer == peer || k.name == "peer" {
			names = append(names, k.name)
		}
	}
	return names
}

// TakesValue reports whether a word is a keyword of `set` that a value follows.
func TakesValue(word string) bool {
	return slices.ContainsFunc(keywords(), func(k keyword) bool { return k.name == word && !k.bare })
}

// argParser collects the words of `set` in a File, and what a file cannot say beside it.
type argParser struct {
	parser
	extras []argPeer // one for each peer
}

// argPeer is what `set` says of a peer beyond a file's [Peer].
type argPeer struct {
	remove bool
	listed bool // allowed IPs were given, be they none
}

func (p *argParser) extra() *argPeer { return &p.extras[len(p.extras)-1] }

func (p *argParser) addPeer(value string) string {
	p.file.Peers = append(p.file.Peers, Peer{})
	p.extras = append(p.extras, argPeer{})
	return setPublicKey(&p.parser, value)
}

// setAllowedIPs takes the empty list, which leaves a peer none, as wg(8) does.
func setAllowedIPs(p *argParser, value string) string {
	p.extra().listed = true
	p.peer().ModifyAllowedIPs = false // each list decides anew
	value = squeeze(value)
	if value == "" {
		return ""
	}
	for item := range strings.SplitSeq(value, ",") {
		if want := addAllowedIP(&p.parser, item); want != "" {
			return want
		}
	}
	return ""
}

// ParseArgs reads the words that follow the interface in `wg set`: keywords and their values. private-key and
// preshared-key name files, which are read; an empty one removes the key. resolve is called for each endpoint, once all
// words have been found good. warnings are for people, in the words of wg(8). Errors are *ArgError, or a Resolver's.
func ParseArgs(ctx context.Context, words []string, resolve Resolver) (dev config.Device, warnings []string, err error) {
	var p argParser
	for len(words) > 0 {
		n, err := p.take(words)
		if err != nil {
			return config.Device{}, nil, err
		}
		words = words[n:]
	}
	dev, err = p.file.Additions(ctx, resolve)
	if err != nil {
		return config.Device{}, nil, err
	}
	own := &p.file.Interface
	dev.Spread, dev.SpreadPorts, dev.Underlay, dev.ReceiveCPUs = own.Spread, own.SpreadPorts, own.Underlay, own.ReceiveCPUs
	for i, extra := range p.extras {
		peer := &dev.Peers[i]
		peer.ReplaceAllowedIPs = peer.ReplaceAllowedIPs && extra.listed
		if extra.remove { // whatever else was said of it, as in wg(8)
			*peer = config.Peer{PublicKey: peer.PublicKey, Remove: true}
		}
	}
	return dev, p.file.Warnings, nil
}

// take handles a keyword with its value, and returns how many words that were.
func (p *argParser) take(words []string) (int, error) {
	word := words[0]
	known := keywords()
	i := slices.IndexFunc(known, func(k keyword) bool { return k.name == word })
	if i < 0 {
		return 0, &ArgError{Word: presentable(word, "x"), Known: Keywords(len(p.extras) > 0)}
	}
	k := known[i]
	switch {
	case k.peer && len(p.extras) == 0:
		return 0, &ArgError{Word: word, Fault: "belongs behind a peer"}
	case !k.peer && word != "peer" && len(p.extras) > 0:
		return 0, &ArgError{Word: word, Fault: "belongs before the first peer"}
	case k.bare:
		k.set(p, "")
		return 1, nil
	case len(words) == 1:
		return 0, &ArgError{Word: word, Fault: "a value is missing"}
	}
	if want := k.set(p, words[1]); want != "" {
		fault := "want " + want
		if !k.secret {
			fault += fmt.Sprintf(", got %.60q", words[1])
		}
		return 0, &ArgError{Word: word, Fault: fault}
	}
	return 2, nil
}
