// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/base64"
	"flag"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
)

var screenshots = flag.String("screenshots", "", "directory for pictures of the page")

// serve serves the page; while broken is set, live.json fails.
func serve(t *testing.T, f *fake, broken *atomic.Bool) string {
	t.Helper()
	mux := http.NewServeMux()
	for pattern, h := range Handlers(Config{Sample: f.sample, Now: f.now}) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/live.json" && broken.Load() {
				http.Error(w, "no", http.StatusServiceUnavailable)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL + "/"
}

func (b *browser) picture(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	data, _ := b.call("Page.captureScreenshot", map[string]any{"captureBeyondViewport": true})["data"].(string)
	png, err := base64.StdEncoding.DecodeString(data)
	if err == nil {
		err = os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

func TestBrowserDrawsTunnel(t *testing.T) {
	b := openBrowser(t)
	b.size(1000, 900)
	b.open(serve(t, &fake{name: "wg0", peers: 40}, new(atomic.Bool)))
	b.await(`document.querySelector('#rx b').textContent.includes('Gbit/s')`)
	for expression, want := range map[string]any{
		"document.title": "wg0 · ropewalk",
		"document.querySelector('#rx b').textContent":           "11.5 Gbit/s", // 36 × 40 MB/s
		"document.querySelectorAll('#lanes td').length":         float64(9 * 5),
		"document.querySelectorAll('#peers tr').length":         float64(1 + MaxPeers),
		"document.querySelectorAll('#queues tr').length":        float64(1 + 8),
		"document.querySelectorAll('#cores tr').length":         float64(1 + 8),
		"document.querySelector('#drops td').textContent":       "the authentication tag is wrong",
		"document.querySelectorAll('#picture rect.hot').length": float64(1), // 95 %
		// peers and the others, lanes without the idle slow one, lanes into the NIC, queues, and a queue's two cores
		"document.querySelectorAll('#picture .band').length": float64(MaxPeers + 1 + 8 + 8 + 8 + 16),
		"document.querySelector('#trouble').hidden":          true,
		"document.body.innerText.includes('203.0.113')":      false,
	} {
		if got := b.eval(expression); got != want {
			t.Errorf("%s: got %v, want %v", expression, got, want)
		}
	}
	b.picture("wide")
	if len(b.errors) > 0 {
		t.Errorf("the page has errors: %q", b.errors)
	}
}

func TestPageFitsPhoneScreen(t *testing.T) {
	b := openBrowser(t)
	url := serve(t, &fake{name: "wg-branch-office", peers: 3}, new(atomic.Bool))
	b.size(360, 740)
	backs := map[any]bool{}
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		b.open(url)
		b.await(`document.querySelector('#rx b').textContent.includes('Gbit/s')`)
		if got := b.eval("document.documentElement.scrollWidth"); got != float64(360) {
			t.Errorf("%s: got width %v pixels, want %v", scheme, got, float64(360))
		}
		smallest := `Math.min(...[...document.querySelectorAll('body *')].map((e) => parseFloat(getComputedStyle(e).fontSize)))`
		if got, _ := b.eval(smallest).(float64); got < 11 {
			t.Errorf("%s: text of %v pixels", scheme, got)
		}
		inside := `[...document.querySelectorAll('#picture rect')].every((e) => e.getBoundingClientRect().right <= 360)`
		if b.eval(inside) != true {
			t.Errorf("%s: the picture is wider than the screen", scheme)
		}
		backs[b.eval("getComputedStyle(document.body).backgroundColor")] = true
		b.picture("phone-" + scheme)
	}
	if len(backs) != 2 {
		t.Errorf("light and dark look alike: got %v, want length 2", backs)
	}
}

func TestPageReportsOutageAndRecovers(t *testing.T) {
	b := openBrowser(t)
	var broken atomic.Bool
	b.open(serve(t, &fake{name: "wg0", peers: 1}, &broken))
	b.await(`document.querySelector('#rx b').textContent.includes('Gbit/s')`)
	broken.Store(true)
	b.await(`document.querySelector('#trouble').textContent.includes('HTTP status 503')`)
	if b.eval(`document.querySelectorAll('#picture rect').length > 0`) != true {
		t.Error("the last frame is no longer shown")
	}
	broken.Store(false)
	b.await(`document.querySelector('#trouble').hidden`)
}

func TestMaliciousNameIsShownAsText(t *testing.T) {
	b := openBrowser(t)
	name := `<img src=x onerror="document.title='owned'">`
	b.open(serve(t, &fake{name: name, peers: 1}, new(atomic.Bool)))
	b.await(`document.querySelector('#rx b').textContent.includes('Gbit/s')`)
	if got := b.eval(`document.querySelector('h1').textContent`); got != name {
		t.Errorf("the name became %v", got)
	}
	if b.eval(`document.querySelectorAll('img').length`) != float64(0) {
		t.Error("the name became an element")
	}
}

func TestButtonSwitchesDirection(t *testing.T) {
	b := openBrowser(t)
	b.open(serve(t, &fake{name: "wg0", peers: 1}, new(atomic.Bool)))
	b.await(`document.querySelector('#picture').getAttribute('aria-label').includes('rx over 8 lanes')`)
	b.eval(`document.querySelector('#tx').click()`)
	b.await(`document.querySelector('#picture').getAttribute('aria-label').includes('64.0 Mbit/s tx over 8 lanes')`)
}
