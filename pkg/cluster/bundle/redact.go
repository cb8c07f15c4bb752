// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
)

// removed replaces secrets.
const removed = "(removed)"

// secrets match what no file of the archive may have. The first group of each stays.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`()-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`),
	regexp.MustCompile(`()eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+`), // JSON Web Tokens, such as ServiceAccounts' tokens
	regexp.MustCompile(`(?i)(\bbearer )[\w.~+/-]+=*`),
	// The keys of wg's file format, of the control socket and of JSON, in base64 or hex.
	regexp.MustCompile(`(?i)((?:private|preshared)[-_ ]?key\\?["']?\s*[:=]?\s*\\?["']?)[A-Za-z0-9+/]{40,}={0,2}`),
	regexp.MustCompile(`(?i)(\b(?:token|password|passwd|secret)\\?["']?\s*[:=]\s*\\?["']?)[^\s"'\\,{}\[\]]+`),
}

// redact replaces secrets in a text. Agents and engines write none: this is for faults, and for
// containers that administrators add.
func redact(text []byte) []byte {
	for _, s := range secrets {
		text = s.ReplaceAll(text, []byte("${1}"+removed))
	}
	return text
}

// trimObjects removes fields from JSON objects that may have secrets of others (values of
// environment variables, annotations), and large fields that say nothing. Text that is no JSON
// stays.
func trimObjects(text []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return text
	}
	trim(v)
	if out, err := json.MarshalIndent(v, "", "  "); err == nil {
		return append(out, '\n')
	}
	return text
}

func trim(v any) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			trim(item)
		}
	case map[string]any:
		delete(v, "managedFields")
		if _, isNode := v["nodeInfo"]; isNode {
			delete(v, "images") // names of private images
		}
		trimAnnotations(v)
		trimEnvironment(v)
		for _, field := range v {
			trim(field)
		}
	}
}

// trimAnnotations keeps ropewalk's own.
func trimAnnotations(object map[string]any) {
	annotations, _ := object["annotations"].(map[string]any)
	for key := range annotations {
		if !strings.Contains(key, "ropewalk.io/") {
			delete(annotations, key)
		}
	}
}

func trimEnvironment(container map[string]any) {
	variables, _ := container["env"].([]any)
	for _, v := range variables {
		if variable, ok := v.(map[string]any); ok && variable["value"] != nil {
			variable["value"] = removed
		}
	}
}
