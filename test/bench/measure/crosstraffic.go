// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"fmt"
	"net/netip"
)

// crossTraffic holds the addresses for traffic outside the tunnel: a second address on A's cable to B, and a third host on
// a separate cable.
type crossTraffic struct {
	localAddr       netip.Addr // at A, towards B
	otherHost       netip.Addr // the host that is not B
	otherHostSource netip.Addr // at A, towards that host
}

// addCrossTraffic adds the third host and the addresses to the Lab, once.
func (l *Lab) addCrossTraffic() (*crossTraffic, error) {
	if l.crossTraffic != nil {
		return l.crossTraffic, nil
	}
	address := func(s string) netip.Prefix { return netip.PrefixFrom(netip.MustParseAddr(s), 24) }
	from, away, other := address("192.168.77.3"), address("192.168.79.1"), address("192.168.79.2")
	if err := l.A.Host.SetUp(l.A.CableDevice, 0, from); err != nil {
		return nil, err
	}
	if _, err := l.AddHost("c", away, other); err != nil {
		return nil, fmt.Errorf("connecting another host: %w", err)
	}
	l.crossTraffic = &crossTraffic{localAddr: from.Addr(), otherHost: other.Addr(), otherHostSource: away.Addr()}
	return l.crossTraffic, nil
}
