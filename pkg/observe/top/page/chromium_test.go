// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/ropewalk/ropewalk/test/expect"
)

// browser is a headless Chromium with one page open, driven by the DevTools protocol over a pipe.
type browser struct {
	t       *testing.T
	in      *os.File
	out     *bufio.Reader
	session string
	id      int
	errors  []string // errors on the console, and violations of the content security policy
}

// openBrowser skips where there is no Chromium.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: make test-page installs it")
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), path, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
		"--disable-dev-shm-usage", "--remote-debugging-pipe", "--user-data-dir="+profileDir(t), "about:blank")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.ExtraFiles = []*os.File{theirIn, theirOut} // which it has as 3 and 4
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		_, _ = in.WriteString(`{"id":0,"method":"Browser.close"}` + "\x00")
		_ = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // helpers that outlive it
		in.Close()
		out.Close()
	})
	if err := out.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	b.attach()
	return b
}

// profileDir is a directory that Chromium's helpers, which outlive it by a moment, may write to while it is removed.
func profileDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		expect.EventuallyNoError(t, "the profile is removed", func() error { return os.RemoveAll(dir) })
	})
	return dir
}

func (b *browser) attach() {
	b.t.Helper()
	target := b.call("Target.createTarget", map[string]any{"url": "about:blank"})
	session := b.call("Target.attachToTarget", map[string]any{"targetId": target["targetId"], "flatten": true})
	b.session, _ = session["sessionId"].(string)
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(domain+".enable", nil)
	}
}

// call returns the result of a method, and collects what the page says meanwhile.
func (b *browser) call(method string, params any) map[string]any {
	b.t.Helper()
	b.id++
	request := map[string]any{"id": b.id, "method": method}
	if params != nil {
		request["params"] = params
	}
	if b.session != "" {
		request["sessionId"] = b.session
	}
	text, err := json.Marshal(request)
	if err == nil {
		_, err = b.in.Write(append(text, 0))
	}
	if err != nil {
		b.t.Fatalf("%s: got error %v, want none", method, err)
	}
	for {
		m := b.next(method)
		if m.ID == b.id {
			if m.Error != nil {
				b.t.Fatalf("%s: got %v, want nil", method, m.Error)
			}
			return m.Result
		}
	}
}

// message is one from Chromium: an answer or an event.
type message struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result map[string]any  `json:"result"`
	Error  any             `json:"error"`
}

func (b *browser) next(method string) message {
	b.t.Helper()
	text, err := b.out.ReadBytes(0)
	if err != nil {
		b.t.Fatalf("%s: got error %v, want none", method, err)
	}
	var m message
	if err := json.Unmarshal(text[:len(text)-1], &m); err != nil {
		b.t.Fatal(err)
	}
	switch m.Method {
	case "Runtime.exceptionThrown", "Log.entryAdded":
		b.errors = append(b.errors, string(m.Params))
	}
	return m
}

// eval returns the value of an expression; a promise's when it is kept.
func (b *browser) eval(expression string) any {
	b.t.Helper()
	r := b.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true})
	if r["exceptionDetails"] != nil {
		b.t.Fatalf("%s: got %v, want nil", expression, r["exceptionDetails"])
	}
	value, _ := r["result"].(map[string]any)
	return value["value"]
}

// await waits until an expression is true.
func (b *browser) await(expression string) {
	b.t.Helper()
	const script = `new Promise((done) => { const end = Date.now() + 60000;
		const poll = () => { let ok = false; try { ok = %s } catch (e) {} ; if (ok || Date.now() > end) done(ok); else setTimeout(poll, 50); }; poll(); })`
	if b.eval(fmt.Sprintf(script, expression)) != true {
		b.t.Fatalf("false after a minute: %s; the page: %v; its errors: %q", expression, b.eval("document.body.innerText"), b.errors)
	}
}

// size gives the page the screen of a phone, or of something larger.
func (b *browser) size(width, height int) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{
		"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
	})
}

func (b *browser) scheme(name string) {
	b.t.Helper()
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": name}}})
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url})
}
