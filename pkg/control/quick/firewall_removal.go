// SPDX-License-Identifier: Apache-2.0

package quick

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// removeFirewall deletes all rules of addFirewall for the interface, of both address families and both tools.
type removeFirewall struct{ link string }

func (s removeFirewall) run(ctx context.Context, j *job) error {
	t := j.Tools
	return errors.Join(
		s.removeNft(ctx, j),
		s.removeIptables(ctx, j, t.IptablesSave, t.IptablesRestore),
		s.removeIptables(ctx, j, t.Ip6tablesSave, t.Ip6tablesRestore))
}

func (s removeFirewall) removeNft(ctx context.Context, j *job) error {
	if j.Tools.Nft == "" {
		return nil
	}
	tables, err := pipe(ctx, "", j.Tools.Nft, "list", "tables")
	if err != nil {
		return nil // a kernel that cannot list tables has none
	}
	deletions := s.nftDeletions(tables)
	if deletions == "" {
		return nil
	}
	j.echo("nft -f -")
	_, err = pipe(ctx, deletions, j.Tools.Nft, "-f", "-")
	return err
}

// nftDeletions returns nft commands that delete the interface's tables. tables is the output of `nft list tables`, such as
// "table ip wg-quick-wg0".
func (s removeFirewall) nftDeletions(tables string) string {
	var b strings.Builder
	for line := range strings.Lines(tables) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "table" && fields[2] == nftTable(s.link) {
			fmt.Fprintf(&b, "delete table %s %s\n", fields[1], fields[2])
		}
	}
	return b.String()
}

func (s removeFirewall) removeIptables(ctx context.Context, j *job, save, restore string) error {
	if save == "" || restore == "" {
		return nil
	}
	rules, err := pipe(ctx, "", save)
	if err != nil {
		return nil // a kernel that cannot list rules has none
	}
	deletions := s.iptablesDeletions(rules)
	if deletions == "" {
		return nil
	}
	j.echo(filepath.Base(restore) + " -n")
	_, err = pipe(ctx, deletions, restore, "-n")
	return err
}

// iptablesDeletions converts output of iptables-save into input for iptables-restore -n that deletes the interface's rules.
func (s removeFirewall) iptablesDeletions(rules string) string {
	var b strings.Builder
	found := false
	for line := range strings.Lines(rules) {
		rule, appended := strings.CutPrefix(line, "-A ")
		switch {
		case appended && strings.Contains(rule, ruleComment(s.link)):
			found = true
			b.WriteString("-D " + rule)
		case strings.HasPrefix(line, "*"), strings.TrimSpace(line) == "COMMIT":
			b.WriteString(line)
		}
	}
	if !found {
		return ""
	}
	return b.String()
}
