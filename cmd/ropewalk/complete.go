// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/show"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/protocol/config"
)

const noFiles = cobra.ShellCompDirectiveNoFileComp

// interfaces returns the interfaces that a daemon serves, nil if they cannot be listed.
func interfaces() []string {
	names, err := socketDir().Interfaces()
	if err != nil {
		return nil
	}
	return names
}

// completeInterface completes an interface as the only argument.
func completeInterface(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	return interfaces(), noFiles
}

func completeInterfaceAndFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return interfaces(), noFiles
	case 1:
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, noFiles
}

func completeLog(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch len(args) {
	case 0:
		return interfaces(), noFiles
	case 1:
		return uapi.Levels(), noFiles
	}
	return nil, noFiles
}

func completeShow(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		return append(interfaces(), "all", "interfaces"), noFiles
	case len(args) == 1 && args[0] != "interfaces":
		return selectors(), noFiles
	}
	return nil, noFiles
}

func selectors() []string {
	var names []string
	for _, sel := range show.Selectors() {
		names = append(names, string(sel))
	}
	return names
}

// completeConfig completes the argument of up and down: a name in wg-quick's directory, or a file.
func completeConfig(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, noFiles
	}
	entries, err := os.ReadDir(quick.DefaultDir)
	if err != nil {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".conf"); ok {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveDefault
}

// completeFlag completes the values of a flag. It panics if there is no such flag.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, noFiles))
	if err != nil {
		panic(err)
	}
}

// completeDevice completes a network device of this host as the only argument.
func completeDevice(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	devices, err := net.Interfaces()
	if len(args) > 0 || err != nil {
		return nil, noFiles
	}
	var names []string
	for i := range devices {
		names = append(names, devices[i].Name)
	}
	return names, noFiles
}

// completeSet completes the keywords of set, and the values that are known.
func completeSet(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return interfaces(), noFiles
	}
	word := ""
	inPeer := false
	for rest := args[1:]; len(rest) > 0; {
		if inPeer = inPeer || rest[0] == "peer"; !conffile.TakesValue(rest[0]) {
			rest = rest[1:]
			continue
		}
		if len(rest) == 1 {
			word = rest[0]
			break
		}
		rest = rest[2:]
	}
	return completeSetWord(args[0], word, inPeer)
}

// completeSetWord completes the value of keyword word. If word is empty, it completes the next keyword.
func completeSetWord(name, word string, inPeer bool) ([]string, cobra.ShellCompDirective) {
	switch word {
	case "":
		return conffile.Keywords(inPeer), noFiles
	case "private-key", "preshared-key":
		return nil, cobra.ShellCompDirectiveDefault
	case "peer":
		return peerKeys(name), noFiles
	case "persistent-keepalive", "fwmark":
		return []string{"off"}, noFiles
	}
	for _, s := range config.Table() {
		switch {
		case s.Flag() != word:
		case !inPeer:
			return s.Words(), noFiles
		case slices.Contains(conffile.Keywords(inPeer), word): // post-quantum
			return append(s.Words(), "default", config.PostQuantumForget), noFiles
		}
	}
	return nil, noFiles
}

// peerKeys returns the public keys of an interface's peers, each with its allowed IPs as the description.
func peerKeys(name string) []string {
	var keys []string
	_ = withDaemon(socketDir(), name, func(c *uapi.Client) error {
		st, err := c.Status()
		for i := range st.Peers {
			p := &st.Peers[i]
			texts := make([]string, len(p.AllowedIPs))
			for j, prefix := range p.AllowedIPs {
				texts[j] = show.Prefix(prefix)
			}
			keys = append(keys, cobra.CompletionWithDesc(p.PublicKey.Base64(), strings.Join(texts, " ")))
		}
		return err
	})
	slices.Sort(keys)
	return keys
}
