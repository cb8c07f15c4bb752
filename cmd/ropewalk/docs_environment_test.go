// SPDX-License-Identifier: Apache-2.0

package main

// variable describes an environment variable that this program, its libraries or its runtime read. Its texts are Markdown.
type variable struct {
	name, values string
	used         string // the commands that read it, or the program or library
	about        string
	foreign      bool // read by a library, the runtime or another program, not by this module's own code
}

// environment lists all of them, for docs/configuration.md.
func environment() []variable {
	return []variable{
		{name: "LOG_LEVEL", values: "`debug`, `verbose`, `info`, `warn`, `error`, `silent`", used: "`run`, `up`, `spread attach --watch`", about: "Log level, unless `--log-level` is given. Other values are ignored, because other programs use this variable too."},
		{name: "WG_PROCESS_FOREGROUND", values: "`1`", used: "`ropewalk wg0`, and a link named wireguard-go", about: "Serves the interface in the foreground, as wireguard-go does."},
		{name: "WG_TUN_FD", values: "a file descriptor", used: "`run`", about: "A queue of a TUN interface that another program has created, with IFF_NO_PI and IFF_VNET_HDR. The daemon serves that interface, with one lane, and creates none."},
		{name: "WG_UAPI_FD", values: "a file descriptor", used: "`run`", about: "A Unix socket that listens at `/var/run/wireguard/INTERFACE.sock`. The daemon uses it as its control socket."},
		{name: "WG_QUICK_USERSPACE_IMPLEMENTATION", values: "`ropewalk`", used: "wg-quick(8), `ropewalk wg0`", about: "The program that wg-quick(8) starts. If it is set, the interface may have any name but that of a command, else its name must be as `wg0`: letters, digits, `-` and `_`, with a digit, and no resemblance to a command."},
		{name: "WG_ENDPOINT_RESOLUTION_RETRIES", values: "a number, `infinity`; 15", used: "`run --config`, `up`, `reload`, `set`, `setconf`, `addconf`, `syncconf`", about: "Number of retries when a name server does not answer."},
		{name: "WG_COLOR_MODE", values: "`always`, `never`, `auto`", used: "`show`, `spread`, `mesh`, `demo`", about: "Colours; `auto` uses them on a terminal."},
		{name: "WG_HIDE_KEYS", values: "`never`", used: "`show`", about: "`never` shows private and preshared keys, except in JSON."},
		{name: "NO_COLOR", values: "anything", used: "`show`, `spread`, `mesh`, `top`, `doctor`, `demo`", about: "Turns colours off."},
		{name: "COLUMNS", values: "a number; 120", used: "`top --once`, `flows`", about: "Width of the output when it is not a terminal."},
		{name: "TERM", values: "`dumb`", used: "`spread`, `mesh`, `top`, `doctor`, `bench`, `demo`", about: "`dumb`: the terminal has neither colours nor cursor control."},
		{name: "LC_ALL", values: "a locale", used: "`top`, `flows`", about: "Bars use block characters in a UTF-8 locale, else ASCII. The first set variable of `LC_ALL`, `LC_CTYPE` and `LANG` decides. If none is set, UTF-8 is assumed."},
		{name: "LC_CTYPE", values: "a locale", used: "`top`, `flows`", about: "See `LC_ALL`."},
		{name: "LANG", values: "a locale", used: "`top`, `flows`", about: "See `LC_ALL`."},
		{name: "KUBECONFIG", values: "a file; `~/.kube/config`", used: "`mesh`", about: "Cluster to connect to, unless `--kubeconfig` is given.", foreign: true},
		{name: "MEMORY_LIMIT", values: "bytes; none", used: "`ropewalk-agent`", about: "The container's memory limit. The garbage collector keeps the heap below 90 % of it, unless GOMEMLIMIT is set."},
		{name: "NODE_NAME", values: "a name", used: "`ropewalk-agent`", about: "Name of the node, unless `--node` is given."},
		{name: "CREDENTIALS_DIRECTORY", values: "a directory", used: "systemd: `up`", about: "Directory of the credential `private-key`. [Install](install.md#the-private-key-as-a-credential)."},
		{name: "NOTIFY_SOCKET", values: "a socket", used: "systemd: `run`, `up`, `reload`", about: "Socket for sd_notify(3): the tunnel is up, reloading or stopping."},
		{name: "SYSTEMD_EXEC_PID", values: "a process ID", used: "systemd: `run`, `up`, `reload`", about: "The process that systemd started. `ropewalk` in a hook has another process ID and does not notify systemd. A daemon with this process ID outlives the removal of its control socket."},
		{name: "JOURNAL_STREAM", values: "a device and inode", used: "systemd: `up`", about: "If it identifies standard error, the daemon logs to the journal.", foreign: true},
		{name: "WATCHDOG_USEC", values: "microseconds", used: "systemd: `run`", about: "Watchdog timeout. The daemon checks itself three times per timeout and notifies systemd if the check passes.", foreign: true},
		{name: "WATCHDOG_PID", values: "a process ID", used: "systemd: `run`", about: "The process that the watchdog supervises.", foreign: true},
		{name: "GOMAXPROCS", values: "a number; the CPUs in the affinity mask and the cgroup's quota", used: "Go's runtime", about: "Number of CPUs from which the defaults of `--lanes` and `--workers` are computed.", foreign: true},
		{name: "GOMEMLIMIT", values: "bytes; none", used: "Go's runtime", about: "Soft memory limit: near it, the garbage collector runs more often.", foreign: true},
		{name: "GOGC", values: "percent; 100, in `ropewalk-agent` 10", used: "Go's runtime", about: "Heap growth between two garbage collections.", foreign: true},
	}
}
