// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/ropewalk/ropewalk/pkg/control/conffile"
	"github.com/ropewalk/ropewalk/pkg/control/quick"
	"github.com/ropewalk/ropewalk/pkg/control/uapi"
	"github.com/ropewalk/ropewalk/pkg/netio/hostnet"
	"github.com/ropewalk/ropewalk/pkg/observe/term"
)

func newCheckCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "check CONFIG_FILE | INTERFACE",
		Short: "Check a wg-quick file without changing anything",
		Long: "check reads a wg-quick file as `ropewalk up` does, and prints all mistakes in it. It warns of settings that are\n" +
			"accepted and surely not meant. It also warns of settings with which `ropewalk up` fails on this host, or\n" +
			"`ropewalk reload` if the interface is up. It looks the names of endpoints up, and changes nothing. For a file without\n" +
			"a PrivateKey it looks for the key of the running tunnel, and for a systemd credential.\n\n" +
			"Exit codes: 0 nothing found, 3 the file has mistakes, 4 warnings only.",
		Example:           "  ropewalk check wg0\n  ropewalk check ./wg0.conf",
		Args:              usageArgs(cobra.ExactArgs(1)),
		ValidArgsFunction: completeConfig,
		RunE:              func(cmd *cobra.Command, args []string) error { return checkFile(cmd, quick.DefaultDir, "/", args[0]) },
	}
}

func checkFile(cmd *cobra.Command, dir, root, arg string) error {
	i, err := openInterface(dir, arg)
	if mistakes, ok := errors.AsType[conffile.Error](err); ok {
		fmt.Fprintln(cmd.OutOrStdout(), printable(keyHint(mistakes).Error()))
		return codedError{code: exitFailed}
	}
	if err != nil {
		return withHint(err)
	}
	name, err := addKnownKey(uapi.DefaultDir, root, &i)
	if err != nil {
		fmt.Fprintln(cmd.OutOrStdout(), printable(err.Error()))
		return codedError{code: exitFailed}
	}
	found := slices.Concat(i.File.Warnings, i.File.CheckSettings(), hostWarnings(os.DirFS(root), i.File),
		obstacles(os.DirFS(root), i), dnsWarnings(i.File, quick.FindTools(exec.LookPath)),
		endpointWarnings(cmd.Context(), os.DirFS(root), i, conffile.NewResolver(conffile.ResolverConfig{})))
	if err := cmd.Context().Err(); err != nil {
		return err
	}
	for _, warning := range found {
		fmt.Fprintln(cmd.OutOrStdout(), printable(warning))
	}
	if len(found) > 0 {
		return codedError{code: exitWarnings}
	}
	credential := ""
	if name != "" {
		credential = ", private key from the credential " + name
	}
	if i.File.KeyElsewhere && name != "" { // addKnownKey cannot read it
		credential += " (encrypted, not checked)"
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, nothing found%s\n", printable(i.Path), term.Count(len(i.File.Peers), "peer"), printable(credential))
	return err
}

// hostWarnings returns warnings about settings that do not fit the host with the file system root.
func hostWarnings(root fs.FS, f *conffile.File) (warnings []string) {
	conf := &f.Interface
	if conf.Table != "" && conf.Table != "auto" && conf.Table != "off" {
		if _, err := hostnet.TableNumber(root, conf.Table); err != nil {
			warnings = append(warnings, fmt.Sprintf("Warning: Table: %v", err))
		}
	}
	return append(warnings, networkdWarnings(root, f)...)
}

// obstacles returns warnings about the host's network.
func obstacles(root fs.FS, i quick.Interface) (warnings []string) {
	p, err := quick.Predict(root, quick.DefaultRunDir, i)
	if err != nil {
		p.Failures = append(p.Failures, err.Error())
	}
	command := "up"
	if p.Running {
		command = "reload"
	}
	for _, reason := range p.Failures {
		warnings = append(warnings, fmt.Sprintf("Warning: `ropewalk %s` fails on this host: %s", command, reason))
	}
	for _, reason := range p.Warnings {
		warnings = append(warnings, "Warning: "+reason)
	}
	return warnings
}

// dnsWarnings returns a warning about DNS servers that this host cannot set or use.
func dnsWarnings(f *conffile.File, tools quick.Tools) []string {
	if len(f.Interface.DNS) > 0 && tools.Resolvconf == "" {
		return []string{"Warning: `ropewalk up` fails on this host: " + quick.ErrNoResolvconf.Error()}
	}
	if warning := tools.PortWarning(f.Interface.DNS); warning != "" {
		return []string{"Warning: " + warning}
	}
	return nil
}

// lookupTimeout bounds the lookups of the names of all endpoints of a file.
const lookupTimeout = 10 * time.Second

// endpointWarnings returns warnings about endpoints whose names or zones cannot be resolved, or whose messages are routed into the tunnel. They mean
// nothing once ctx has ended.
func endpointWarnings(ctx context.Context, root fs.FS, i quick.Interface, resolve conffile.Resolver) (warnings []string) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var peers []*conffile.Peer
	var addrs []netip.Addr
	late := 0
	for n := range i.File.Peers {
		p := &i.File.Peers[n]
		if p.Endpoint == "" {
			continue
		}
		ep, err := resolve(ctx, p.Endpoint)
		if err != nil && ctx.Err() != nil {
			late++
		}
		switch addr := ep.AddrPort.Addr(); {
		case err != nil && late > 1:
		case err != nil:
			warnings = append(warnings, fmt.Sprintf("Warning: peer %s: %v", p.PublicKey.Base64(), err))
		case ep.AddrPort.Port() == 0 || addr.IsUnspecified() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
			warnings = append(warnings, fmt.Sprintf("Warning: peer %s: Endpoint %s: no host has the address and port %v", p.PublicKey.Base64(), p.Endpoint, ep.AddrPort))
		default:
			peers, addrs = append(peers, p), append(addrs, addr)
		}
	}
	if late > 1 {
		warnings = append(warnings, "Warning: the name server does not answer in time: the other endpoints are not checked")
	}
	looping, err := quick.LoopingPrefixes(root, socketDir(), i, addrs)
	if err != nil {
		return append(warnings, "Warning: "+err.Error())
	}
	for n, into := range looping {
		through := ""
		if into.IsValid() && !into.Contains(addrs[n].Unmap()) {
			through = ", through another tunnel"
		}
		if into.IsValid() {
			warnings = append(warnings, fmt.Sprintf("Warning: peer %s: AllowedIPs: the route to %v takes messages to the endpoint %v into the tunnel itself%s: "+
				"use 0.0.0.0/0 or ::/0 in place of parts of it, or add a route to the endpoint", peers[n].PublicKey.Base64(), into, addrs[n], through))
		}
	}
	return warnings
}
