// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// value is a setting of a chart.
type value struct {
	path, about string
	preset      string // JSON
}

// readValues reads a chart's values with the comments above them. A value without a comment, and without any within it, is an
// error.
func readValues(text []byte) ([]value, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("parsing values: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, fmt.Errorf("the values are %d documents", len(doc.Content))
	}
	return valuesIn(doc.Content[0], "")
}

func valuesIn(n *yaml.Node, prefix string) (all []value, err error) {
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, child := n.Content[i], n.Content[i+1]
		path := prefix + key.Value
		if explained(child) {
			more, err := valuesIn(child, path+".")
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
			continue
		}
		v := value{path: path, about: comment(key.HeadComment)}
		if v.about == "" {
			return nil, fmt.Errorf("%s has no description", path)
		}
		if v.preset, err = asJSON(child); err != nil {
			return nil, fmt.Errorf("reading the preset of %s: %w", path, err)
		}
		all = append(all, v)
	}
	return all, nil
}

// explained reports whether the comments are within a mapping rather than above it.
func explained(n *yaml.Node) bool {
	if n.Kind != yaml.MappingNode {
		return false
	}
	return slices.ContainsFunc(n.Content, func(c *yaml.Node) bool { return c.HeadComment != "" || explained(c) })
}

// comment returns the last paragraph: earlier ones are about the file.
func comment(head string) string {
	paragraphs := strings.Split(head, "\n\n")
	var words []string
	for line := range strings.Lines(paragraphs[len(paragraphs)-1]) {
		words = append(words, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
	}
	return strings.Join(words, " ")
}

func asJSON(n *yaml.Node) (string, error) {
	var v any
	if err := n.Decode(&v); err != nil {
		return "", err
	}
	b, err := json.Marshal(v)
	return string(b), err
}

// valuesPage is the beginning of docs/helm-values.md.
const valuesPage = "# Values of the charts\n\n" +
	"[Installing the agent](kubernetes/install.md) describes the installation, and the [glossary](glossary.md) ropewalk's own words. Generated from the comments in `deploy/helm/*/values.yaml` by `make manifests`.\n"

// valuesTable returns a section of docs/helm-values.md.
func valuesTable(title string, values []value) string {
	var b strings.Builder
	b.WriteString("\n## " + title + "\n\n| value | preset | what it is |\n| --- | --- | --- |\n")
	for _, v := range values {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", v.path, strings.ReplaceAll(v.preset, "|", "\\|"), strings.ReplaceAll(v.about, "|", "\\|"))
	}
	return b.String()
}
