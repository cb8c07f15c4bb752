// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// ropewalkKeys are the keys that ropewalk adds to [Interface].
func ropewalkKeys() []key {
	var keys []key
	for _, s := range config.Table() {
		keys = append(keys, key{name: s.Name, quick: true, set: setOwn(s), doc: doc{values: s.Values, defaultValue: "`" + s.Default + "`", about: s.About}})
	}
	return append(
		keys,
		key{name: "Lanes", quick: true, set: setLanes, doc: doc{
			values:       "1–" + strconv.Itoa(config.MaxLanes),
			defaultValue: "one per CPU",
			about:        "Lanes, each with a TUN queue, two threads and a socket.", restart: true,
		}},
		key{name: "Metrics", quick: true, set: setMetrics, doc: doc{
			values:       "`host:port`",
			defaultValue: "none",
			about:        "The address at which metrics are served. [Metrics](metrics.md).", restart: true,
		}},
	)
}

// ropewalkPeerKeys are the keys that ropewalk adds to [Peer].
func ropewalkPeerKeys() []key {
	return []key{
		{name: "PostQuantum", quick: true, set: setPeerPostQuantum, doc: doc{
			values:       "`auto`, `off`, `required`",
			defaultValue: "as `[Interface]` has it",
			about:        "`PostQuantum` for this peer.",
		}},
	}
}

func setOwn(s config.Setting) func(*parser, string) string {
	return func(p *parser, value string) string {
		if s.Set(&p.file.Interface.Settings, value) != nil {
			return s.Want
		}
		return ""
	}
}

func setLanes(p *parser, value string) string {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n < 1 || n > config.MaxLanes {
		return "1-" + strconv.Itoa(config.MaxLanes)
	}
	p.file.Interface.Lanes = int(n)
	return ""
}

func setPeerPostQuantum(p *parser, value string) string {
	policy, err := config.ParsePostQuantum(value)
	if err != nil {
		return config.WantPostQuantum
	}
	p.peer().PostQuantum = &policy
	return ""
}

// setMetrics accepts host:port. An empty host means all addresses.
func setMetrics(p *parser, value string) string {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil || strings.ContainsAny(value, " \t") {
		return "address:port, [IPv6 address]:port or name:port"
	}
	p.file.Interface.Metrics = value
	return ""
}

// checkPorts reports spread ports that include the listen port. The default range skips the listen port, but a configured range is a
// mistake.
func (p *parser) checkPorts() {
	conf := &p.file.Interface
	if conf.SpreadPorts != nil && conf.ListenPort != nil && conf.SpreadPorts.Contains(*conf.ListenPort) {
		p.errs = append(p.errs, &LineError{
			File: p.name, Line: p.given["SpreadPorts"], Key: "SpreadPorts",
			Want: fmt.Sprintf("a range without the ListenPort, %d", *conf.ListenPort), Got: strconv.Quote(conf.SpreadPorts.String()),
		})
	}
}

func formatRopewalk(b *bufio.Writer, i *Interface) {
	for _, s := range config.Table() {
		if text, given := s.Text(&i.Settings); given {
			fmt.Fprintf(b, "%s = %s\n", s.Name, text)
		}
	}
	if i.Lanes != 0 {
		fmt.Fprintf(b, "Lanes = %d\n", i.Lanes)
	}
	if i.Metrics != "" {
		fmt.Fprintf(b, "Metrics = %s\n", i.Metrics)
	}
}
