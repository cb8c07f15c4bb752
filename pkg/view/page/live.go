// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/ropewalk/ropewalk/pkg/view"
)

// How old samples may be.
const (
	fresh = 900 * time.Millisecond // one younger answers every request
	stale = 10 * time.Second       // one older says nothing about now
)

// live takes samples while somebody looks, and answers all who do with the same frame.
type live struct {
	config Config

	mu   sync.Mutex
	last view.Sample
	body []byte
}

// answer is what the page fetches.
type answer struct {
	*view.Frame
	Others others `json:"others"`
}

// others are the peers that are not shown one by one.
type others struct {
	Count  int     `json:"count"`
	RxRate float64 `json:"rx_bytes_per_second"`
	TxRate float64 `json:"tx_bytes_per_second"`
}

// json is the latest frame.
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
		before = view.Sample{}
	}
	body, err := json.Marshal(l.answer(view.Compare(&before, &now)))
	if err != nil {
		return nil, fmt.Errorf("encoding a frame: %w", err)
	}
	l.last, l.body = now, body
	return body, nil
}

// answer leaves out what the page does not show.
func (l *live) answer(f *view.Frame) answer {
	f.Sort(view.ByDefault, false)
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
