// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/ropewalk/ropewalk/pkg/control/show"
)

// header begins every JSON document that a command prints. Within an API version, fields are only added: none is removed or
// changes its meaning.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func headerOf(kind string) header { return header{show.APIVersion, kind} }

// writeJSON prints an indented document.
func writeJSON(out io.Writer, document any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if err := e.Encode(document); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}
