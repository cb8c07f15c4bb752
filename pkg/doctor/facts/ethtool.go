// SPDX-License-Identifier: Apache-2.0

package facts

import (
	"time"

	"github.com/safchain/ethtool"

	"github.com/ropewalk/ropewalk/pkg/hostnet"
)

// ask fills in what ethtool's ioctls tell, which anybody may ask.
func (n *NIC) ask() {
	n.RSS = answer(hostnet.ReadRSS(n.Name))
	e, err := ethtool.NewEthtool()
	if err != nil {
		n.unasked(err)
		return
	}
	defer e.Close()
	n.Driver = answer(e.DriverName(n.Name))
	c, err := e.GetChannels(n.Name)
	n.Channels = answer(Channels{
		RX: int(c.RxCount), MaxRX: int(c.MaxRx), Combined: int(c.CombinedCount), MaxCombined: int(c.MaxCombined),
	}, err)
	r, err := e.GetRing(n.Name)
	n.Rings = answer(Rings{
		RX: int(r.RxPending), MaxRX: int(r.RxMaxPending), TX: int(r.TxPending), MaxTX: int(r.TxMaxPending),
	}, err)
	w, err := e.GetCoalesce(n.Name)
	n.Coalescing = answer(Coalescing{
		RX: time.Duration(w.RxCoalesceUsecs) * time.Microsecond, Adaptive: w.UseAdaptiveRxCoalesce != 0,
	}, err)
	n.Features = answer(features(e, n.Name))
}

func (n *NIC) unasked(err error) {
	n.Driver, n.Channels, n.Rings = Unknown[string](err), Unknown[Channels](err), Unknown[Rings](err)
	n.Coalescing, n.Features = Unknown[Coalescing](err), Unknown[map[string]Feature](err)
}

func features(e *ethtool.Ethtool, device string) (map[string]Feature, error) {
	states, err := e.FeaturesWithState(device)
	if err != nil {
		return nil, err
	}
	all := make(map[string]Feature, len(states))
	for name, state := range states {
		all[name] = Feature{On: state.Active, Fixed: state.NeverChanged || !state.Available}
	}
	return all, nil
}
