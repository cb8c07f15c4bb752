// SPDX-License-Identifier: Apache-2.0

package hostnet

import "fmt"

// NoTrackCommand returns the command of a shell that exempts a tunnel from conntrack. from are the ports from which its messages pass
// conntrack, as nft(8) takes them, such as 51820 or { 51820, 61000-61999 }.
func NoTrackCommand(listen uint16, from string) string {
	return fmt.Sprintf("nft 'add table inet ropewalk_notrack; add chain inet ropewalk_notrack output { type filter hook output priority raw; }; "+
		"add rule inet ropewalk_notrack output udp sport %[2]s notrack; "+
		"add chain inet ropewalk_notrack prerouting { type filter hook prerouting priority raw; }; "+
		"add rule inet ropewalk_notrack prerouting udp dport %[1]d fib daddr type local notrack'", listen, from)
}
