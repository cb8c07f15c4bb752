// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// ArgError is a mistake in the arguments of `set`. Its text never holds a word that might be a secret key.
type ArgError struct {
	Word  string   // the keyword, or the unknown word; empty when it might be a secret
	Known []string // the keywords allowed there, when Word is none of them
	Fault string   // the mistake, when Word is a keyword
}

// Error returns text such as `allowed-ips: want addresses …` or `invalid argument "per"`.
func (e *ArgError) Error() string {
	switch {
	case e.Known != nil && e.Word == "":
		return "invalid argument"
	case e.Known != nil:
		return fmt.Sprintf("invalid argument %q", e.Word)
	}
	return e.Word + ": " + e.Fault
}

// keyword is a keyword of `set`. A value follows it, unless bare is set.
type keyword struct {
	name   string
	peer   bool                                           // applies to the peer before it, not to the device
	secret bool                                           // errors do not quote the value
	bare   bool                                           // no value follows
	set    func(p *argParser, value string) (want string) // as of key
}

// keywords lists the keywords in the order of wg(8)'s usage text. In each part, ropewalk's own
// keywords come last.
func keywords() []keyword {
	file := func(set func(*parser, string) string) func(*argParser, string) string {
		return func(p *argParser, value string) string { return set(&p.parser, value) }
	}
	known := []keyword{
		{name: "listen-port", set: file(interfaceKeys()[1].set)},
		{name: "fwmark", set: file(setFwMark)},
		{name: "private-key", secret: true, set: func(p *argParser, path string) string {
			return setKeyFile(&p.file.Interface.PrivateKey, path)
		}},
	}
	for _, s := range config.Table() {
		known = append(known, keyword{name: s.Flag(), set: file(setOwn(s))})
	}
	return append(known, []keyword{
		{name: "peer", set: func(p *argParser, value string) string { return p.addPeer(value) }},
		{name: "remove", peer: true, bare: true, set: func(p *argParser, _ string) string {
			p.lastExtra().remove = true
			return ""
		}},
		{name: "preshared-key", peer: true, secret: true, set: func(p *argParser, path string) string {
			return setKeyFile(&p.peer().PresharedKey, path)
		}},
		{name: "endpoint", peer: true, set: file(setEndpoint)},
		{name: "persistent-keepalive", peer: true, set: file(setKeepalive)},
		{name: "allowed-ips", peer: true, set: setAllowedIPs},
		{name: "name", peer: true, set: setName},
		{name: "post-quantum", peer: true, set: setPostQuantumArg},
	}...)
}

// Keywords returns the keywords that are allowed: a device's keywords, or after the first peer a
// peer's keywords.
func Keywords(peer bool) []string {
	var names []string
	for _, k := range keywords() {
		if k.peer == peer || k.name == "peer" {
			names = append(names, k.name)
		}
	}
	return names
}

// TakesValue reports whether a word is a keyword of `set` with a value.
func TakesValue(word string) bool {
	return slices.ContainsFunc(keywords(), func(k keyword) bool { return k.name == word && !k.bare })
}

// argParser collects the arguments of `set` in a File, and in extras what a file cannot express.
type argParser struct {
	parser
	extras []peerExtra // one for each peer
}

// peerExtra holds settings of a peer that `set` has and a file's [Peer] has not.
type peerExtra struct {
	remove bool
	listed bool // allowed-ips was given, possibly with an empty list
	name   *string
	forget bool // that sessions had post-quantum keys
}

func (p *argParser) lastExtra() *peerExtra { return &p.extras[len(p.extras)-1] }

func (p *argParser) addPeer(value string) string {
	p.file.Peers = append(p.file.Peers, Peer{})
	p.extras = append(p.extras, peerExtra{})
	return setPublicKey(&p.parser, value)
}

// setName accepts the empty name, which removes the present one.
func setName(p *argParser, value string) string {
	if config.CheckName(value) != nil {
		return fmt.Sprintf("a name of printable characters, at most %d bytes", config.MaxNameLen)
	}
	p.lastExtra().name = &value
	return ""
}

// setPostQuantumArg accepts "forget" besides the policies.
func setPostQuantumArg(p *argParser, value string) string {
	if strings.EqualFold(value, config.PostQuantumForget) {
		p.lastExtra().forget = true
		return ""
	}
	if want := setPeerPostQuantum(&p.parser, value); want != "" {
		return strconv.Quote(config.PostQuantumForget) + ", " + want
	}
	return ""
}

// setAllowedIPs accepts the empty list, which removes all allowed IPs, as wg(8) does.
func setAllowedIPs(p *argParser, value string) string {
	p.lastExtra().listed = true
	p.peer().ModifyAllowedIPs = false // each list decides by itself
	value = removeSpace(value)
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

// ParseArgs parses the arguments that follow the interface in `wg set`: keywords and their values. The values of private-key and
// preshared-key are file names. ParseArgs reads the files. An empty file removes the key. It calls resolve for each endpoint after all
// arguments have been found valid. warnings are texts for the user, worded as wg(8) does. Errors are *ArgError, or a Resolver's.
func ParseArgs(ctx context.Context, words []string, resolve Resolver) (dev config.Device, warnings []string, err error) {
	var p argParser
	for len(words) > 0 {
		n, err := p.parseKeyword(words)
		if err != nil {
			return config.Device{}, nil, err
		}
		words = words[n:]
	}
	dev, err = p.file.Additions(ctx, resolve)
	if err != nil {
		return config.Device{}, nil, err
	}
	dev.Settings = p.file.Interface.Settings
	for i, extra := range p.extras {
		peer := &dev.Peers[i]
		peer.ReplaceAllowedIPs = peer.ReplaceAllowedIPs && extra.listed
		peer.Name, peer.ForgetPostQuantum = extra.name, extra.forget
		if extra.remove { // whatever else was given for the peer, as in wg(8)
			*peer = config.Peer{PublicKey: peer.PublicKey, Remove: true}
		}
	}
	return dev, p.file.Warnings, nil
}

// parseKeyword handles a keyword with its value, and returns how many words it has used.
func (p *argParser) parseKeyword(words []string) (int, error) {
	word := words[0]
	known := keywords()
	inPeer := len(p.extras) > 0
	i := slices.IndexFunc(known, func(k keyword) bool { return k.name == word && k.peer == inPeer })
	if i < 0 {
		i = slices.IndexFunc(known, func(k keyword) bool { return k.name == word })
	}
	if i < 0 {
		return 0, &ArgError{Word: safeName(word, "x"), Known: Keywords(inPeer)}
	}
	k := known[i]
	switch {
	case k.peer && !inPeer:
		return 0, &ArgError{Word: word, Fault: "must follow a peer"}
	case !k.peer && word != "peer" && inPeer:
		return 0, &ArgError{Word: word, Fault: "must precede the first peer"}
	case k.bare:
		k.set(p, "")
		return 1, nil
	case len(words) == 1:
		return 0, &ArgError{Word: word, Fault: "missing value"}
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
