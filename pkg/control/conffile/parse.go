// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxFile is the largest file, maxLine the longest line, both in bytes.
const (
	maxFile = 64 << 20
	maxLine = 16 << 20
)

// newLineScanner returns a scanner for lines of up to maxLine bytes. A longer line ends it with bufio.ErrTooLong, and a file of more than
// maxFile bytes with another error.
func newLineScanner(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(&fileReader{io.LimitedReader{R: r, N: maxFile + 1}})
	lines.Buffer(nil, maxLine+1) // and the newline
	return lines
}

// fileReader fails when its limit, one byte more than allowed, is reached: a file that is cut has fewer peers.
type fileReader struct{ io.LimitedReader }

func (f *fileReader) Read(b []byte) (int, error) {
	n, err := f.LimitedReader.Read(b)
	if f.N == 0 {
		return 0, fmt.Errorf("longer than %d bytes", maxFile)
	}
	return n, err
}

// Parse reads a configuration. For mistakes in it, it returns an Error that lists them with name
// as the file's name, and no File. As in wg(8), keys and section names are case-insensitive, white
// space is ignored, and "#" starts a comment. A repeated key replaces the value, repeated
// AllowedIPs add up, and sections may repeat. A byte-order mark and CR LF are accepted.
func Parse(name string, r io.Reader, dialect Dialect) (*File, error) {
	p := parser{name: name, dialect: dialect}
	if err := p.parse(r); err != nil {
		return nil, err
	}
	p.endPeer()
	p.names.end(&p)
	p.checkPorts()
	p.checkMTU()
	if len(p.errs) > 0 {
		return nil, p.errs
	}
	return &p.file, nil
}

// ParseHooks reads only Table and the commands PreDown and PostDown of a file. The file may have
// mistakes: wg-quick also takes an interface down with such a file.
func ParseHooks(name string, r io.Reader) (*File, error) {
	p := parser{name: name, dialect: Quick, hooksOnly: true}
	if err := p.parse(r); err != nil {
		return nil, err
	}
	all := &p.file.Interface
	return &File{Interface: Interface{Table: all.Table, PreDown: all.PreDown, PostDown: all.PostDown}}, nil
}

// parse reads all lines, or those before maxErrors mistakes.
func (p *parser) parse(r io.Reader) error {
	lines := newLineScanner(r)
	for len(p.errs) < maxErrors && lines.Scan() {
		p.number++
		if p.hooksOnly {
			p.errs = nil
		}
		p.parseComment(string(lines.Bytes()))
		p.parseLine(cleanLine(lines.Bytes(), p.number))
	}
	if err := lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		p.number++
		p.report(LineError{Fault: fmt.Sprintf("longer than %d bytes", maxLine)})
	} else if err != nil {
		return fmt.Errorf("reading %s: %w", p.name, err)
	}
	return nil
}

// cleanLine removes a comment, and in the first line a byte-order mark.
func cleanLine(line []byte, number int) string {
	if number == 1 {
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf"))
	}
	line, _, _ = bytes.Cut(line, []byte{'#'})
	return string(line)
}

type section uint8

const (
	noSection section = iota
	interfaceSection
	peerSection
)

// String returns the line that begins a section.
func (s section) String() string {
	return [...]string{"no section", "[Interface]", "[Peer]"}[s]
}

type parser struct {
	name    string
	dialect Dialect
	file    File
	errs    Error

	hooksOnly bool // mistakes do not matter

	section  section
	number   int  // of the line
	peerLine int  // the line of the last [Peer]
	hasKey   bool // the last [Peer] has its PublicKey
	names    nameComments
	given    map[string]int // the lines of keys in the [Interface] sections, and in the last [Peer]
}

func (p *parser) parseLine(line string) {
	text := removeSpace(line)
	switch {
	case strings.Contains(text, "\x00"):
		p.fault("", "text without NUL bytes", "")
	case text == "":
	case strings.HasPrefix(text, "["):
		p.enter(text)
	default:
		p.assign(line)
	}
}

// enter handles a line that begins a section.
func (p *parser) enter(text string) {
	switch strings.ToLower(text) {
	case "[interface]":
		p.section = interfaceSection
	case "[peer]":
		p.endPeer()
		above := p.names.above(p)
		for _, k := range append(peerKeys(), ropewalkPeerKeys()...) {
			delete(p.given, k.name)
		}
		p.section, p.peerLine, p.hasKey = peerSection, p.number, false
		p.file.Peers = append(p.file.Peers, Peer{Name: above})
	default:
		p.section = noSection
		if end := strings.IndexByte(text, ']'); end >= 0 {
			text = text[:end+1] // behind it may be a key, in a file with carriage returns only
		}
		p.fault("", "[Interface] or [Peer]", fmt.Sprintf("%.40q", text))
	}
}

func (p *parser) endPeer() {
	if len(p.file.Peers) > 0 && !p.hasKey {
		p.errs = append(p.errs, &LineError{File: p.name, Line: p.peerLine, Want: "a PublicKey in this [Peer]"})
	}
	p.hasKey = true // reported once
}

// assign handles a key = value line. raw still has its white space, which some values need.
func (p *parser) assign(raw string) {
	p.names.end(p)
	name, value, ok := strings.Cut(raw, "=")
	key, found := p.lookup(name)
	switch {
	case p.section == noSection:
		p.fault("", "[Interface] or [Peer] before this line", "")
	case !found:
		p.unknownKey(name, value, ok)
	case ok && strings.Trim(value, space) != "":
		if !key.quick {
			value = removeSpace(value)
		}
		p.noteRepeated(key)
		p.set(key, strings.Trim(value, space))
	case !ok || !key.quick: // an empty value means unset for wg-quick, and is a mistake for wg(8)
		p.fault(key.name, "a value", "")
	}
}

// noteRepeated records a key whose value replaces an earlier one. Lists and commands add up.
func (p *parser) noteRepeated(key *key) {
	if key.list != nil || key.command {
		return
	}
	if p.given[key.name] > 0 {
		text := fmt.Sprintf("%s:%d: %s is given again: it replaces the value before", p.name, p.number, key.name)
		if key.name == "PublicKey" {
			text += ", and another peer needs a [Peer] line of its own"
		}
		p.file.Repeated = append(p.file.Repeated, text)
	}
	if p.given == nil {
		p.given = map[string]int{}
	}
	p.given[key.name] = p.number
}

// unknownKey reports a line whose key is not one of the section. assigned: there is a "=".
func (p *parser) unknownKey(name, value string, assigned bool) {
	if elsewhere := p.otherSection(); assigned {
		if key, ok := elsewhere.lookup(name); ok {
			p.report(LineError{Key: key.name, Fault: "belongs in " + elsewhere.section.String()})
			return
		}
	}
	if !assigned {
		p.report(LineError{Fault: `no "="`, Want: "a line such as ListenPort = 51820"})
		return
	}
	p.report(LineError{Key: safeName(name, value), Fault: "unknown key", Want: "one of " + p.keyNames()})
}

// otherSection returns a parser in the other kind of section, for its keys.
func (p *parser) otherSection() *parser {
	other := parser{dialect: p.dialect, section: peerSection}
	if p.section == peerSection {
		other.section = interfaceSection
	}
	return &other
}

// set stores a value, item by item if it is a list, and reports the first item that is wrong.
func (p *parser) set(key *key, value string) {
	values, set := []string{value}, key.set
	switch {
	case key.list != nil && key.quick:
		values, set = splitList(value), key.list
	case key.list != nil:
		p.peer().ModifyAllowedIPs = false // each line decides by itself, as in wg(8); AllowedIPs is the only such list
		values, set = strings.Split(value, ","), key.list
	}
	for _, v := range values {
		if want := set(p, v); want != "" {
			got := ""
			if !key.secret {
				got = fmt.Sprintf("%.60q", v)
			}
			p.fault(key.name, want, got)
			return
		}
	}
}

// lookup finds a key of the section. wg(8) ignores white space within names, wg-quick does not.
func (p *parser) lookup(name string) (*key, bool) {
	keys := p.keys()
	i := slices.IndexFunc(keys, func(k key) bool {
		if k.quick {
			return strings.EqualFold(k.name, strings.Trim(name, space))
		}
		return strings.EqualFold(k.name, removeSpace(name))
	})
	if i < 0 {
		return nil, false
	}
	return &keys[i], true
}

// keys returns the keys allowed in the current section.
func (p *parser) keys() []key {
	switch {
	case p.section == peerSection && p.dialect == WG:
		return peerKeys()
	case p.section == peerSection:
		return append(peerKeys(), ropewalkPeerKeys()...)
	case p.section == noSection:
		return nil
	case p.dialect == WG:
		return interfaceKeys()
	case p.dialect == Daemon:
		return append(interfaceKeys(), slices.DeleteFunc(ropewalkKeys(), func(k key) bool { return k.doc.restart })...)
	}
	return slices.Concat(interfaceKeys(), quickKeys(), ropewalkKeys())
}

func (p *parser) keyNames() string {
	var names []string
	for _, k := range p.keys() {
		names = append(names, k.name)
	}
	return strings.Join(names, ", ")
}

func (p *parser) fault(key, want, got string) {
	p.report(LineError{Key: key, Want: want, Got: got})
}

func (p *parser) report(e LineError) {
	e.File, e.Line = p.name, p.number
	p.errs = append(p.errs, &e)
}

// maxNameLen is the longest name, in bytes, that safeName returns. Known names have up to 19, and a WireGuard key has 43
// before its "=".
const maxNameLen = 24

// safeName returns the name of an unknown key for an error, or "" when it might be a secret. The
// line may have nothing but a secret, or the end of a secret, with its padding, that was broken
// over two lines.
func safeName(name, value string) string {
	name = strings.Trim(name, space)
	const word = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	if len(name) > maxNameLen || strings.Trim(name, word) != "" || strings.Trim(value, space+"=") == "" {
		return ""
	}
	return name
}

// peer returns the peer of the current section.
func (p *parser) peer() *Peer {
	return &p.file.Peers[len(p.file.Peers)-1]
}

// space is the white space of isspace(3) in the C locale.
const space = " \t\n\v\f\r"

// removeSpace removes all white space.
func removeSpace(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(space, r) {
			return -1
		}
		return r
	}, s)
}
