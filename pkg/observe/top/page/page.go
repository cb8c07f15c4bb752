// SPDX-License-Identifier: Apache-2.0

package page

import (
	"crypto/sha256"
	_ "embed" // for the go:embed directives
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/observe/top"
)

//go:embed page.html
var document string

//go:embed page.css
var styles string

//go:embed page.js
var script string

// MaxPeers is the number of busiest peers that are listed.
const MaxPeers = 12

// Config configures the page.
type Config struct {
	// Sample is called by several goroutines, one at a time, about once per second for any number of clients.
	Sample func() top.Sample
	// ShowPeers reports whether this many peers may be listed; otherwise only their sum is shown. nil means yes.
	ShowPeers func(peers int) bool
	Now       func() time.Time // time.Now when nil
}

// Handlers returns the handlers of the page and of its data, by http.ServeMux pattern.
func Handlers(c Config) map[string]http.Handler {
	if c.Now == nil {
		c.Now = time.Now
	}
	l := &live{config: c}
	html, policy := assemble()
	return map[string]http.Handler{
		"GET /{$}": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			setHeaders(w, "text/html; charset=utf-8")
			w.Header().Set("Content-Security-Policy", policy)
			_, _ = io.WriteString(w, html)
		}),
		"GET /live.json": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			body, err := l.json()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			setHeaders(w, "application/json")
			_, _ = w.Write(body)
		}),
	}
}

// setHeaders forbids caching, cross-origin use and referrers.
func setHeaders(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// assemble inserts styles and script into the document. It also returns the Content-Security-Policy that allows these two,
// by hash (CSP Level 3), and nothing else.
func assemble() (html, policy string) {
	html = strings.NewReplacer("/*STYLES*/", styles, "/*SCRIPT*/", script).Replace(document)
	policy = fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; img-src data:; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'", hash(script), hash(styles))
	return html, policy
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
