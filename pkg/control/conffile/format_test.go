// SPDX-License-Identifier: Apache-2.0

package conffile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
	"github.com/ropewalk/ropewalk/pkg/protocol/noise"
)

func TestShowConfOmitsUnsetKeys(t *testing.T) {
	st := config.Status{
		ListenPort: 51820, FwMark: 0xca6c, PrivateKey: privateKey,
		Peers: []config.PeerStatus{{
			PublicKey: publicKey, PresharedKey: psk, Keepalive: 25,
			Endpoint:   config.Endpoint{AddrPort: netip.MustParseAddrPort("[fe80::1]:5"), Scope: 1},
			AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("::/0")},
		}, {PublicKey: publicKey}},
	}
	for want, st := range map[string]config.Status{
		"[Interface]\n\n": {},
		"[Interface]\nListenPort = 51820\nFwMark = 0xca6c\nPrivateKey = " + privateKey.Base64() +
			"\n\n[Peer]\nPublicKey = " + publicKey.Base64() + "\nPresharedKey = " + psk.Base64() +
			"\nAllowedIPs = 10.0.0.0/24, ::/0\nEndpoint = [fe80::1%lo]:5\nPersistentKeepalive = 25\n\n[Peer]\nPublicKey = " +
			publicKey.Base64() + "\n": st,
	} {
		var b bytes.Buffer
		err := ShowConf(&b, st, zoneName)
		if diff := cmp.Diff(want, b.String()); diff != "" || err != nil {
			t.Error(err, diff)
		}
	}
}

func TestStripRemovesQuickAndRopewalkKeysOnly(t *testing.T) {
	var b bytes.Buffer
	err := Strip(&b, strings.NewReader("\ufeff[Interface]\n# note\n  ListenPort = 1 # x\nmtu=5\nPostUp = a\n"+
		"Spread = on\n lanes=4\nSPREADPORTS = 1-2 # x\nunderlay = udp\nmetrics=:1\n[Peer]\nMTU = 5\nPostQuantum = off\nLanes = 5"))
	want := "[Interface]\n# note\nListenPort = 1 # x\n[Peer]\nMTU = 5\nLanes = 5\n\n"
	if diff := cmp.Diff(want, b.String()); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestStripErrorNamesTheOverlongLine(t *testing.T) {
	var b bytes.Buffer
	err := Strip(&b, strings.NewReader(strings.Repeat("#", 1<<13)+"\n"+strings.Repeat("#", maxLine+1)))
	if want := "reading line 2 of the configuration to strip: longer than 16777216 bytes"; err == nil || err.Error() != want || b.Len() > 0 {
		t.Errorf("got %v and %d bytes, want %s and none", err, b.Len(), want)
	}
}

// blankLines returns a configuration with size bytes.
func blankLines(size int64) io.Reader {
	line := strings.Repeat(" ", 1<<20-1) + "\n"
	return io.LimitReader(strings.NewReader(strings.Repeat(line, int(size>>20)+1)), size)
}

func TestStripRefusesTooLargeFile(t *testing.T) {
	var b bytes.Buffer
	if err := Strip(&b, blankLines(maxFile)); err != nil || b.Len() == 0 {
		t.Errorf("the largest file: got %d bytes and error %v", b.Len(), err)
	}
	b.Reset()
	err := Strip(&b, blankLines(maxFile+1))
	if want := "reading the configuration to strip: longer than 67108864 bytes"; err == nil || err.Error() != want || b.Len() > 0 {
		t.Errorf("got error %v and %d bytes, want %s and none", err, b.Len(), want)
	}
}

func resolveNothing(context.Context, string) (config.Endpoint, error) {
	return config.Endpoint{}, errors.New("no resolver")
}

func TestDeviceResetsSettingsMissingFromFile(t *testing.T) {
	f := parse(t, "[Peer]\nPublicKey="+publicKey.Base64(), WG)
	got, err := f.Device(t.Context(), resolveNothing)
	want := config.Device{
		PrivateKey: new(noise.PrivateKey), ListenPort: new(uint16), FwMark: new(uint32), ReplacePeers: true,
		Peers: []config.Peer{{PublicKey: publicKey, ReplaceAllowedIPs: true}},
	}
	if diff := cmp.Diff(want, got, exact); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestAdditionsKeepSettingsMissingFromFile(t *testing.T) {
	f := parse(t, "[Interface]\nListenPort=5\n[Peer]\nPublicKey="+publicKey.Base64()+"\nAllowedIPs=-10.0.0.0/8", WG)
	got, err := f.Additions(t.Context(), resolveNothing)
	want := config.Device{ListenPort: new(uint16(5)), Peers: []config.Peer{{
		PublicKey: publicKey, AllowedIPs: []config.AllowedIP{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Remove: true}},
	}}}
	if diff := cmp.Diff(want, got, exact); diff != "" || err != nil {
		t.Error(err, diff)
	}
}

func TestUnresolvedEndpointIsAnError(t *testing.T) {
	f := parse(t, "[Peer]\nPublicKey="+publicKey.Base64()+"\nEndpoint=vpn.example:5", WG)
	if dev, err := f.Device(t.Context(), resolveNothing); err == nil || dev.Peers != nil {
		t.Error(dev, err)
	}
}
