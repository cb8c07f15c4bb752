// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bufio"
	"fmt"
	"strconv"

	"github.com/ropewalk/ropewalk/pkg/config"
	"github.com/ropewalk/ropewalk/pkg/spread"
)

// ownKeys are the keys that ropewalk adds to [Interface].
func ownKeys() []key {
	return []key{
		{name: "Spread", quick: true, set: setSpread},
		{name: "Lanes", quick: true, set: setLanes},
		{name: "SpreadPorts", quick: true, set: setSpreadPorts},
		{name: "Underlay", quick: true, set: setUnderlay},
	}
}

func setSpread(p *parser, value string) string {
	mode, err := config.ParseSpreadMode(value)
	if err != nil {
		return `"auto", "off" or "on"`
	}
	p.file.Interface.Spread = &mode
	return ""
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
	p.file.Interface.SpreadPorts, p.portsAt = &ports, p.number
	return ""
}

func setUnderlay(p *parser, value string) string {
	mode, err := config.ParseUnderlayMode(value)
	if err != nil {
		return `"auto", "udp" or "xdp"`
	}
	p.file.Interface.Underlay = &mode
	return ""
}

// checkPorts reports source ports among which the listen port is. A default range gives way to it, a chosen one is a
// mistake.
func (p *parser) checkPorts() {
	conf := &p.file.Interface
	if conf.SpreadPorts != nil && conf.ListenPort != nil && conf.SpreadPorts.Contains(*conf.ListenPort) {
		p.errs = append(p.errs, &LineError{
			File: p.name, Line: p.portsAt, Key: "SpreadPorts",
			Want: fmt.Sprintf("a range without the ListenPort, %d", *conf.ListenPort), Got: strconv.Quote(conf.SpreadPorts.String()),
		})
	}
}

func formatOwn(b *bufio.Writer, i *Interface) {
	if i.Spread != nil {
		fmt.Fprintf(b, "Spread = %v\n", *i.Spread)
	}
	if i.Lanes != 0 {
		fmt.Fprintf(b, "Lanes = %d\n", i.Lanes)
	}
	if i.SpreadPorts != nil {
		fmt.Fprintf(b, "SpreadPorts = %v\n", *i.SpreadPorts)
	}
	if i.Underlay != nil {
		fmt.Fprintf(b, "Underlay = %v\n", *i.Underlay)
	}
}
