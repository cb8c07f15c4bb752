// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

// Age limits of samples.
const (
	fresh = 900 * time.Millisecond // a younger sample is served from the cache
	stale = 10 * time.Second       // an older sample is not used for rates
)

// live takes samples on request and serves all clients the same frame.
type live struct {
	config Config

	mu   sync.Mutex
	last top.Sample
	body []byte
}

// answer is the JSON document that the page fetches.
type answer struct {
	*top.Frame
	Others others `json:"others"`
}

// others is the sum of the peers that are not listed.
type others struct {
	Count  int     `json:"count"`
	RxRate float64 `json:"rx_bytes_per_second"`
	TxRate float64 `json:"tx_bytes_per_second"`
}

// json returns the latest frame as JSON.
func (l *live) json() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.config.Now().Sub(l.last.At)
	if l.body != nil && old >= 0 && old < fresh {
		return l.body, nil
	}
	now := l.config.Sample()
	before := l.last
	if old >= stale {
		before = top.Sample{}
	}
	body, err := json.Marshal(l.answer(top.Compare(&before, &now)))
	if err != nil {
		return nil, fmt.Errorf("encoding a frame: %w", err)
	}
	l.last, l.body = now, body
	return body, nil
}

// answer removes endpoints and the peers that the page does not list.
func (l *live) answer(f *top.Frame) answer {
	f.Sort(top.ByDefault, false)
	shown := min(len(f.Peers), MaxPeers)
	if l.config.ShowPeers != nil && !l.config.ShowPeers(len(f.Peers)) {
		shown = 0
	}
	a := answer{Frame: f, Others: others{Count: len(f.Peers) - shown}}
	for i := range f.Peers[shown:] {
		p := &f.Peers[shown+i]
		a.Others.RxRate += p.RxRate
		a.Others.TxRate += p.TxRate
	}
	f.Peers = f.Peers[:shown]
	for i := range f.Peers {
		f.Peers[i].Endpoint = ""
	}
	return a
}
