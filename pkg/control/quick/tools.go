// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
)

// Tools are the paths of the programs that a Runner calls; empty for a program that is not
// installed. All are optional.
type Tools struct {
	Bash, Sh   string // run hooks
	Resolvconf string // sets DNS servers
	Nft        string // filters packets

	// Filter packets without Nft.
	IptablesSave, IptablesRestore   string
	Ip6tablesSave, Ip6tablesRestore string
}

// FindTools finds the programs with lookPath, which is exec.LookPath or a replacement for it.
func FindTools(lookPath func(name string) (string, error)) Tools {
	find := func(name string) string {
		path, err := lookPath(name)
		if err != nil {
			return ""
		}
		return path
	}
	return Tools{
		Bash: find("bash"), Sh: find("sh"),
		Resolvconf: find("resolvconf"),
		Nft:        find("nft"),

		IptablesSave: find("iptables-save"), IptablesRestore: find("iptables-restore"),
		Ip6tablesSave: find("ip6tables-save"), Ip6tablesRestore: find("ip6tables-restore"),
	}
}

// pipe runs a program with the given standard input and returns its output. An error contains what the program wrote to stderr.
func pipe(ctx context.Context, input, path string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(cmd.Environ(), "LC_ALL=C")
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if err == nil {
		return stdout.String(), nil
	}
	command := strings.Join(append([]string{filepath.Base(path)}, args...), " ")
	if message := strings.TrimSpace(stderr.String()); message != "" {
		return "", fmt.Errorf("running %s: %w: %s", command, err, message)
	}
	return "", fmt.Errorf("running %s: %w", command, err)
}
