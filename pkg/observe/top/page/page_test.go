// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

func get(t *testing.T, c Config, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	newMux(c).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func newMux(c Config) *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, h := range Handlers(c) {
		mux.Handle(pattern, h)
	}
	return mux
}

func TestPageLoadsNoExternalResources(t *testing.T) {
	html, _ := assemble()
	html = strings.ReplaceAll(html, "http://www.w3.org/2000/svg", "") // the name of a namespace, which nothing fetches
	for _, re := range []string{`(?i)https?:`, `(?i)src\s*=`, `(?i)@import`, `(?i)url\(`, `(?i)import\s*\(`, `['"(]//`, `(?i)WebSocket|EventSource|XMLHttpRequest|sendBeacon|eval\(|innerHTML`} {
		for _, at := range regexp.MustCompile(re).FindAllString(html, -1) {
			t.Errorf("%s finds %q", re, at)
		}
	}
	for _, m := range regexp.MustCompile(`(?:href="|fetch\()([^",]*)`).FindAllStringSubmatch(html, -1) {
		if to := m[1]; to != "'live.json'" && to != "metrics" && !strings.HasPrefix(to, "data:image/svg+xml") {
			t.Errorf("the page refers to %q", to)
		}
	}
	if n := len(html); n > 32<<10 {
		t.Errorf("the page is of %d bytes", n)
	}
}

func TestContentSecurityPolicyAllowsOnlyEmbeddedScript(t *testing.T) {
	w := get(t, Config{Sample: (&fake{}).sample}, "/")
	policy := w.Header().Get("Content-Security-Policy")
	between := func(from, to string) string {
		_, rest, _ := strings.Cut(w.Body.String(), from)
		text, _, _ := strings.Cut(rest, to)
		return text
	}
	for directive, text := range map[string]string{
		"script-src": between("<script>", "</script>"), "style-src": between("<style>", "</style>"),
	} {
		if want := directive + " '" + hash(text) + "'"; text == "" || !strings.Contains(policy, want) {
			t.Errorf("want %s in %s", want, policy)
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none'; ") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %s", policy)
	}
	if regexp.MustCompile(`<[^>]* (?:style|on[a-z]+)=`).MatchString(w.Body.String()) {
		t.Error("the policy refuses attributes that are styles or scripts")
	}
}

// keysOf collects the names of all members of a JSON value.
func keysOf(value any, into map[string]bool) {
	switch v := value.(type) {
	case map[string]any:
		for k, member := range v {
			into[k] = true
			keysOf(member, into)
		}
	case []any:
		for _, member := range v {
			keysOf(member, into)
		}
	}
}

func TestJSONHasFieldsThatScriptReads(t *testing.T) {
	f := &fake{name: "wg0", peers: 2}
	body := get(t, Config{Sample: f.sample, Now: f.now}, "/live.json").Body.Bytes()
	var document map[string]any
	if err := json.Unmarshal(body, &document); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	keysOf(document, all)
	read := 0
	for _, m := range regexp.MustCompile(`\.([a-z]+_[a-z_]+)|(?:frame|others|balance|l|q|p|c|d)\.([a-z]+)\b([^(]|$)`).FindAllStringSubmatch(script, -1) {
		name := m[1] + m[2]
		if slices.Contains([]string{"y", "svg", "nodes", "bands", "row", "width", "map", "length"}, name) {
			continue // of the script's own objects
		}
		read++
		if !all[name] {
			t.Errorf("the script reads %q, which the JSON lacks", name)
		}
	}
	if read < 40 {
		t.Errorf("only %d reads were found", read)
	}
	for _, name := range []string{"rx_bytes_per_second", "tx_bytes_per_second"} { // put together in the script
		if other, _ := document["others"].(map[string]any); other[name] == nil {
			t.Errorf("others have no %s", name)
		}
	}
}

func TestConcurrentRequestsShareOneSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := 0
		c := Config{Sample: func() top.Sample { taken++; return top.Sample{At: time.Now(), Interface: "wg0"} }}
		mux := newMux(c)
		var all sync.WaitGroup
		for range 3 {
			for range 20 {
				all.Go(func() {
					w := httptest.NewRecorder()
					mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/live.json", nil))
					if w.Code != http.StatusOK {
						t.Errorf("the answer is %d", w.Code)
					}
				})
			}
			all.Wait()
			time.Sleep(time.Second) // of the test's own clock
		}
		if taken != 3 {
			t.Errorf("%d samples in three seconds", taken)
		}
	})
}

func figures(t *testing.T, mux http.Handler) answer {
	t.Helper()
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/live.json", nil))
	var a answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatal(err)
	}
	return a
}

func TestStaleSampleGivesNoRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := uint64(0)
		mux := newMux(Config{Sample: func() top.Sample {
			n++
			s := top.Sample{At: time.Now(), Interface: "wg0"}
			s.Stats.Slow.RxBytes = n * 1000
			return s
		}})
		for _, tt := range []struct {
			wait time.Duration
			want float64
		}{{0, 0}, {time.Second, 1000}, {time.Hour, 0}, {2 * time.Second, 500}} {
			time.Sleep(tt.wait)
			if got := figures(t, mux).Rx.ByteRate; got != tt.want {
				t.Errorf("after %s: got %v bytes per second, want %v", tt.wait, got, tt.want)
			}
		}
	})
}

func TestPeersFollowMetricsSettingWithoutEndpoints(t *testing.T) {
	for _, tt := range []struct {
		peers         int
		show          func(int) bool
		shown, others int
	}{
		{3, nil, 3, 0},
		{MaxPeers + 5, nil, MaxPeers, 5},
		{3, func(int) bool { return false }, 0, 3},
		{3, func(n int) bool { return n <= 3 }, 3, 0},
		{0, nil, 0, 0},
	} {
		f := &fake{name: "wg0", peers: tt.peers}
		mux := newMux(Config{Sample: f.sample, Now: f.now, ShowPeers: tt.show})
		figures(t, mux)
		a := figures(t, mux)
		if len(a.Peers) != tt.shown || a.Others.Count != tt.others || a.PeerCount != tt.peers {
			t.Errorf("%d peers: %d shown, %d others, %d in all", tt.peers, len(a.Peers), a.Others.Count, a.PeerCount)
		}
		sum := a.Others.RxRate
		for _, p := range a.Peers {
			sum += p.RxRate
			if p.Endpoint != "" {
				t.Errorf("the address %s is shown", p.Endpoint)
			}
		}
		if want := float64(tt.peers*(tt.peers+1)/2) * 1e6; sum != want {
			t.Errorf("%d peers: got %v bytes per second in all, want %v", tt.peers, sum, want)
		}
	}
}

func TestResponsesForbidCachingAndCrossOriginUse(t *testing.T) {
	for _, path := range []string{"/", "/live.json"} {
		h := get(t, Config{Sample: (&fake{}).sample}, path).Header()
		if h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" {
			t.Errorf("%s: got %v", path, h)
		}
	}
	if code := get(t, Config{Sample: (&fake{}).sample}, "/other").Code; code != http.StatusNotFound {
		t.Errorf("another path is answered with %d", code)
	}
}
