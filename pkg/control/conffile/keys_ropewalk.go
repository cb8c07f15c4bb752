// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bufio"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/spread"
)

// ropewalkKeys are the keys that ropewalk adds to [Interface].
func ropewalkKeys() []key {
	return []key{
		{name: "Spread", quick: true, set: setSpread, doc: doc{
			values:       "`auto`, `off`, `on`",
			defaultValue: "`auto`",
			about: "Whether inner flows have source ports of their own: `auto` towards peers that announce gather, `off` towards none, `on` towards all. " +
				"[Spread](spread.md).",
		}},
		{name: "Lanes", quick: true, set: setLanes, doc: doc{
			values:       "1–" + strconv.Itoa(config.MaxLanes),
			defaultValue: "one per CPU",
			about:        "Lanes, each with a TUN queue, two threads and a socket.", restart: true,
		}},
		{name: "SpreadPorts", quick: true, set: setSpreadPorts, doc: doc{
			values:       "`first-last`, from " + strconv.Itoa(config.MinSpreadPort) + " on",
			defaultValue: "`" + spread.DefaultPorts.String() + "`",
			about:        "Source ports to spread over, without the `ListenPort`.",
		}},
		{name: "Spray", quick: true, set: setSpray, doc: doc{
			values:       "`off`, `auto`, " + strconv.Itoa(config.MinSpray) + "–" + strconv.Itoa(config.MaxSpray),
			defaultValue: "`off`",
			about:        "Source ports over which one large flow is sprayed, towards peers with the same setting. [Spray](spread.md#spray).",
		}},
		{name: "Underlay", quick: true, set: setUnderlay, doc: doc{
			values:       "`auto`, `udp`, `xdp`",
			defaultValue: "`auto`",
			about:        "How data messages are sent and received: UDP sockets, AF_XDP, or `auto` by the network device. [Underlay](underlay.md).",
		}},
		{name: "OuterFragments", quick: true, set: setOuterFragments, doc: doc{
			values:       "`off`, `on`",
			defaultValue: "`off`",
			about:        "Whether messages that exceed the path MTU may leave in fragments. `off` fits inner packets to the path. [Path MTU](underlay.md#path-mtu).",
		}},
		{name: "PostQuantum", quick: true, set: setPostQuantum, doc: doc{
			values:       "`auto`, `off`, `required`",
			defaultValue: "`" + config.DefaultPostQuantum.String() + "`",
			about: "Whether sessions use keys of post-quantum exchanges: `auto` with peers that take part, `required`: no data without. " +
				"[Post-quantum](security.md#post-quantum-keys).",
		}},
		{name: "Metrics", quick: true, set: setMetrics, doc: doc{
			values:       "`host:port`",
			defaultValue: "none",
			about:        "The address at which metrics are served. [Metrics](metrics.md).", restart: true,
		}},
	}
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

func setSpread(p *parser, value string) string {
	return setParsed(&p.file.Interface.Spread, value, config.ParseSpreadMode, `"auto", "off" or "on"`)
}

func setLanes(p *parser, value string) string {
	n, err := strconv.ParseUint(value, 10, 16)
	if err != nil || n < 1 || n > config.MaxLanes {
		return "1-" + strconv.Itoa(config.MaxLanes)
	}
	p.file.Interface.Lanes = int(n)
	return ""
}

func setSpreadPorts(p *parser, value string) string {
	ports, err := config.ParsePorts(value)
	if err != nil {
		return fmt.Sprintf("two ports from %d on, such as %v", config.MinSpreadPort, spread.DefaultPorts)
	}
	p.file.Interface.SpreadPorts, p.portsLine = &ports, p.number
	return ""
}

func setSpray(p *parser, value string) string {
	return setParsed(&p.file.Interface.Spray, value, config.ParseSpray, fmt.Sprintf(`"off", "auto" or a number from %d to %d`, config.MinSpray, config.MaxSpray))
}

func setUnderlay(p *parser, value string) string {
	return setParsed(&p.file.Interface.Underlay, value, config.ParseUnderlayMode, `"auto", "udp" or "xdp"`)
}

func setOuterFragments(p *parser, value string) string {
	return setParsed(&p.file.Interface.OuterFragments, value, config.ParseOuterFragments, `"on" or "off"`)
}

const wantPostQuantum = `"auto", "off", "required" or "default"`

func setPostQuantum(p *parser, value string) string {
	return setParsed(&p.file.Interface.PostQuantum, value, config.ParsePostQuantum, wantPostQuantum)
}

func setPeerPostQuantum(p *parser, value string) string {
	return setParsed(&p.peer().PostQuantum, value, config.ParsePostQuantum, wantPostQuantum)
}

// setParsed stores a parsed value, or returns what is wanted.
func setParsed[T any](to **T, value string, parse func(string) (T, error), want string) string {
	parsed, err := parse(value)
	if err != nil {
		return want
	}
	*to = &parsed
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
			File: p.name, Line: p.portsLine, Key: "SpreadPorts",
			Want: fmt.Sprintf("a range without the ListenPort, %d", *conf.ListenPort), Got: strconv.Quote(conf.SpreadPorts.String()),
		})
	}
}

func formatRopewalk(b *bufio.Writer, i *Interface) {
	if i.Spread != nil {
		fmt.Fprintf(b, "Spread = %v\n", *i.Spread)
	}
	if i.Lanes != 0 {
		fmt.Fprintf(b, "Lanes = %d\n", i.Lanes)
	}
	if i.SpreadPorts != nil {
		fmt.Fprintf(b, "SpreadPorts = %v\n", *i.SpreadPorts)
	}
	if i.Spray != nil {
		fmt.Fprintf(b, "Spray = %v\n", *i.Spray)
	}
	if i.Underlay != nil {
		fmt.Fprintf(b, "Underlay = %v\n", *i.Underlay)
	}
	if i.OuterFragments != nil {
		fmt.Fprintf(b, "OuterFragments = %v\n", *i.OuterFragments)
	}
	if i.PostQuantum != nil {
		fmt.Fprintf(b, "PostQuantum = %v\n", *i.PostQuantum)
	}
	if i.Metrics != "" {
		fmt.Fprintf(b, "Metrics = %s\n", i.Metrics)
	}
}
