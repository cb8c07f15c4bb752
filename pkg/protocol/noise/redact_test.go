// SPDX-License-Identifier: Apache-2.0

package noise

import (
	"bytes"
	"encoding"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// leaky is the byte that all secrets of these tests consist of.
const leaky = 0xa7

// traces are the ways in which two or three leaky bytes in a row may show.
var traces = []string{
	"\xa7\xa7", "a7a7", "A7A7", "a7 a7", "A7 A7", "xa7", "xA7", "167 167", "167, 167", "167,167", "247 247", "p6en", "6en", "enp",
	"10100111 10100111", "§", "U+00A7",
}

func assertNoTrace(t *testing.T, how, out string) {
	t.Helper()
	for _, trace := range traces {
		if strings.Contains(out, trace) {
			t.Errorf("%s prints the secret: got %q, want no %q in it", how, out, trace)
			return
		}
	}
}

type holder[T any] struct {
	Name   string
	Secret T
}

// around returns a secret in all the ways it may be handed to a printer.
func around[T any](secret T) []any {
	return []any{
		secret, &secret,
		[]T{secret},
		[1]T{secret},
		map[string]T{"k": secret},
		holder[T]{"n", secret},
		&holder[T]{"n", secret},
		holder[*T]{"n", &secret},
		[]any{secret},
		holder[any]{"n", secret},
	}
}

// secrets returns every secret type of the package, filled with leaky bytes, in all ways.
func secrets(t *testing.T) map[string][]any {
	t.Helper()
	var raw [KeySize]byte
	for i := range raw {
		raw[i] = leaky
	}
	state := symmetric{chain: raw, hash: raw}
	id, err := NewIdentity(raw)
	if err != nil {
		t.Fatal(err)
	}
	id.public = PublicKey(raw)
	keys := macKeys{mac1: raw, cookie: raw}
	remote := &Remote{local: id, public: PublicKey(raw), shared: raw, start: state, macs: keys}
	return map[string][]any{
		"PrivateKey":    append(around(PrivateKey(raw)), map[PrivateKey]int{raw: 1}),
		"PresharedKey":  append(around(PresharedKey(raw)), map[PresharedKey]int{raw: 1}),
		"SessionKey":    append(around(SessionKey(raw)), map[SessionKey]int{raw: 1}),
		"Keys":          around(Keys{Send: raw, Recv: raw}),
		"Identity":      around(id),
		"Remote":        around(remote),
		"Remote value":  around(*remote),
		"Initiator":     around(&Initiator{remote: remote, state: state}),
		"Responder":     around(&Responder{local: id, state: state, static: PublicKey(raw), ephemeral: raw}),
		"CookieChecker": around(&CookieChecker{keys: keys, secret: raw}),
		"CookieJar":     around(&CookieJar{keys: keys, cookie: [16]byte(raw[:16]), lastMAC1: [16]byte(raw[:16])}),
	}
}

func TestSecretsDoNotShowUnderAnyVerb(t *testing.T) {
	var formats []string
	for verb := 'A'; verb <= 'z'; verb++ {
		if verb == 'p' || verb == 'w' { // misuse that no type can intercept, and that go vet refuses
			continue
		}
		for _, flags := range []string{"", "+", "#", " ", "0", "-", "+#", "# ", "40", "40.3"} {
			formats = append(formats, "%"+flags+string(verb))
		}
	}
	for name, values := range secrets(t) {
		for _, v := range values {
			for _, format := range formats {
				assertNoTrace(t, fmt.Sprintf("%s as %T with %s", name, v, format), fmt.Sprintf(format, v))
			}
			assertNoTrace(t, name+" printed", fmt.Sprint(v)+fmt.Sprintln(v))
			for _, misuse := range []string{"no verb", "%*d", "%[2]d", "%d %d %!"} {
				assertNoTrace(t, name+" with "+misuse, fmt.Sprintf(misuse, v))
			}
		}
	}
}

func TestSecretsDoNotShowInLogs(t *testing.T) {
	for name, values := range secrets(t) {
		for _, v := range values {
			var out bytes.Buffer
			slog.New(slog.NewTextHandler(&out, nil)).Info("x", "secret", v, slog.Group("g", "secret", v))
			slog.New(slog.NewJSONHandler(&out, nil)).With("with", v).Info("x", "secret", v)
			assertNoTrace(t, fmt.Sprintf("logging %s as %T", name, v), out.String())
		}
	}
}

func TestSecretsDoNotShowWhenEncoded(t *testing.T) {
	for name, values := range secrets(t) {
		for _, v := range values {
			out, err := json.Marshal(v)
			if err != nil {
				t.Errorf("marshalling %s as %T: %v", name, v, err)
			}
			assertNoTrace(t, fmt.Sprintf("JSON of %s as %T", name, v), string(out))
			out, _ = xml.Marshal(v) // it has no maps
			assertNoTrace(t, fmt.Sprintf("XML of %s as %T", name, v), string(out))
		}
	}
}

func TestRedactionIsVisible(t *testing.T) {
	for _, v := range []any{PrivateKey{}, PresharedKey{}, SessionKey{}, &Identity{}, &Remote{}, &Initiator{}, &Responder{}} {
		text := v.(fmt.Stringer).String() + v.(fmt.GoStringer).GoString()
		if text != "(hidden)(hidden)" || fmt.Sprintf("%v%x%d%#v", v, v, v, v) != strings.Repeat("(hidden)", 4) {
			t.Errorf("%T prints as %q, want \"(hidden)\" for all verbs", v, text)
		}
		asText, _ := v.(encoding.TextMarshaler).MarshalText()
		asJSON, _ := v.(json.Marshaler).MarshalJSON()
		logged := v.(slog.LogValuer).LogValue().String()
		if logged+string(asText)+string(asJSON) != `(hidden)(hidden)"(hidden)"` {
			t.Errorf("%T: got log value %q, text %q, JSON %q, want (hidden)", v, logged, asText, asJSON)
		}
	}
	public := PublicKey{1}
	if got := fmt.Sprintf("%v %s", public, public); got != public.Base64()+" "+public.Base64() {
		t.Errorf("public key: got %q, want %q", got, public.Base64()+" "+public.Base64())
	}
}

// TestLeakDetectorFindsLeak guards the tests above against traces that find nothing.
func TestLeakDetectorFindsLeak(t *testing.T) {
	raw := [4]byte{leaky, leaky, leaky, leaky}
	asJSON, _ := json.Marshal(raw)
	for _, out := range []string{
		fmt.Sprint(raw), fmt.Sprintf("%x", raw), fmt.Sprintf("%X", raw), fmt.Sprintf("%#v", raw), fmt.Sprintf("%o", raw),
		fmt.Sprintf("%b", raw), fmt.Sprintf("%U", raw), fmt.Sprintf("%q", raw), fmt.Sprintf("%s", raw), string(asJSON),
	} {
		found := false
		for _, trace := range traces {
			found = found || strings.Contains(out, trace)
		}
		if !found {
			t.Errorf("the list of traces does not detect the secret in %q", out)
		}
	}
}
