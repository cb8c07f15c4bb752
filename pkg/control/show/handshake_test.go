// SPDX-License-Identifier: Apache-2.0

package show

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
	"github.com/ropewalk/ropewalk/test/expect"
)

func TestFailingHandshakeIsShown(t *testing.T) {
	st := config.Status{Name: "wg0", Peers: []config.PeerStatus{{PublicKey: noise.PublicKey{1}}, {PublicKey: noise.PublicKey{2}}}}
	st.AddHandshakes(config.HandshakeReport{noise.PublicKey{2}.Base64(): {Unanswered: 6, Error: "network is unreachable"}})
	var text, document bytes.Buffer
	opt := Options{Now: time.Unix(1, 0)}
	expect.NoError(t, Pretty(&text, []config.Status{st}, opt))
	expect.NoError(t, JSON(&document, []config.Status{st}, opt))
	const want = "  handshake: 6 initiations unanswered, the last could not be sent: network is unreachable\n"
	if got := text.String(); strings.Count(got, "handshake:") != 1 || !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant %q once", got, want)
	}
	if got := document.String(); strings.Count(got, `"failing_handshake"`) != 1 || !strings.Contains(got, `"unanswered": 6`) {
		t.Errorf("got\n%s", got)
	}
}

func TestTextOfDaemonIsPrintable(t *testing.T) {
	const text = "\x1b[31mred\nfake: line"
	st := config.Status{Name: "wg0", Lanes: 1, Peers: []config.PeerStatus{{Spread: config.PeerSpread{Reason: text}}}}
	st.AddHandshakes(config.HandshakeReport{noise.PublicKey{}.Base64(): {Unanswered: 6, Error: text}})
	var out bytes.Buffer
	stats := &Stats{Up: true, Cipher: text, Path: &config.UnderlayReport{Reason: text}, Drops: map[string]uint64{text: 1}}
	expect.NoError(t, Pretty(&out, []config.Status{st}, Options{Lanes: true, Stats: map[string]*Stats{"wg0": stats}}))
	if got := out.String(); strings.Contains(got, text) || strings.Count(got, `\x1b[31mred\nfake: line`) != 5 {
		t.Errorf("got\n%s\nwant the text quoted five times", got)
	}
}
