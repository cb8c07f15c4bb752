// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"log"

	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

// A change of a device has only the settings that are to change.
func ExampleSettings() {
	var change config.Device
	for _, s := range config.Table() {
		if s.Flag() == "spread-ports" {
			if err := s.Set(&change.Settings, "62000-62999"); err != nil {
				log.Fatal(err)
			}
		}
	}
	fmt.Println(change.Texts())
	// Output: map[SpreadPorts:62000-62999]
}
