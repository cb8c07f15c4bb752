// SPDX-License-Identifier: Apache-2.0

// Package page serves one web page that draws, live, how a tunnel's traffic lies on peers, lanes, NIC queues and cores. The
// page is one document that fetches nothing but /live.json from where it came. Of keys it has public ones only, and no
// addresses.
package page

import (
	"crypto/sha256"
	_ "embed" // the page is part of the program
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/ropewalk/ropewalk/pkg/view"
)

//go:embed page.html
var document string

//go:embed page.css
var styles string

//go:embed page.js
var script string

// MaxPeers is how many peers, the busiest, are drawn one by one.
const MaxPeers = 12

// Config says what is shown.
type Config struct {
	// Sample may be called by several goroutines, but not at once: at most once per second however many look on.
	Sample func() view.Sample
	// ShowPeers tells whether peers are shown one by one where there are that many; the others are added up. nil is always.
	ShowPeers func(peers int) bool
	Now       func() time.Time // time.Now when nil
}

// Handlers are the page and what it fetches, by http.ServeMux's patterns.
func Handlers(c Config) map[string]http.Handler {
	if c.Now == nil {
		c.Now = time.Now
	}
	l := &live{config: c}
	html, policy := assemble()
	return map[string]http.Handler{
		"GET /{$}": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			protect(w, "text/html; charset=utf-8")
			w.Header().Set("Content-Security-Policy", policy)
			_, _ = io.WriteString(w, html)
		}),
		"GET /live.json": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			body, err := l.json()
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			protect(w, "application/json")
			_, _ = w.Write(body)
		}),
	}
}

// protect keeps what is served out of caches, other sites and referrers.
func protect(w http.ResponseWriter, contentType string) {
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// assemble puts styles and script into the document, and returns with it the policy that lets these two run and nothing
// else (Content Security Policy Level 3, hashes).
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
