// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// buildInfo is the document that `ropewalk version --json` prints.
type buildInfo struct {
	header
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`      // git commit
	Time     string `json:"revision_time,omitempty"` // RFC 3339
	TimeUnix int64  `json:"revision_time_unix,omitempty"`
	Modified bool   `json:"modified"` // the sources had uncommitted changes
	Go       string `json:"go_version"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
}

func newVersionCmd() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version and how it was built",
		Long:    "version prints the version, the git revision, and the Go release and platform of the build.",
		Example: "  ropewalk version\n  ropewalk version --json",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), b)
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), b.text())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// thisBuild returns the build information that the Go toolchain recorded. The revision is there only with -buildvcs.
func thisBuild() buildInfo {
	b := buildInfo{
		header: headerOf("Version"), Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
			if at, err := time.Parse(time.RFC3339, s.Value); err == nil {
				b.TimeUnix = at.Unix()
			}
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b *buildInfo) text() string {
	var t strings.Builder
	fmt.Fprintf(&t, "ropewalk %s\n", b.Version)
	if b.Revision != "" {
		fmt.Fprintf(&t, "revision %s", b.Revision)
		if b.Modified {
			t.WriteString(", modified")
		}
		fmt.Fprintf(&t, ", of %s\n", b.Time)
	}
	fmt.Fprintf(&t, "%s, %s/%s\n", b.Go, b.OS, b.Arch)
	return t.String()
}
