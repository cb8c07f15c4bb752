// SPDX-License-Identifier: Apache-2.0

package main

// variable is one of the environment that this program or what it is built from reads. Its texts are Markdown.
type variable struct {
	name, values string
	used         string // by which commands, or whose it is
	about        string
	foreign      bool // read by a library, the runtime or another program, not by this module's own code
}

// environment lists all of them, for docs/configuration.md.
func environment() []variable {
	return []variable{
		{name: "LOG_LEVEL", values: "`debug`, `verbose`, `info`, `warn`, `error`, `silent`", used: "`run`, `up`, `spread attach --watch`", about: "From which level on to log, where `--log-level` does not say. What is none of these is passed over: others use the variable too."},
		{name: "WG_ENDPOINT_RESOLUTION_RETRIES", values: "a number, `infinity`; 15", used: "`up`, `reload`, `set`, `setconf`, `addconf`, `syncconf`", about: "How often a name server that does not answer is asked again."},
		{name: "WG_COLOR_MODE", values: "`always`, `never`, `auto`", used: "`show`, `spread`, `mesh`, `demo`", about: "Colours; `auto` has them on a terminal."},
		{name: "WG_HIDE_KEYS", values: "`never`", used: "`show`", about: "`never` shows private and preshared keys, but not in JSON."},
		{name: "NO_COLOR", values: "anything", used: "`show`, `spread`, `mesh`, `top`, `doctor`, `demo`", about: "No colours."},
		{name: "COLUMNS", values: "a number; 120", used: "`top --once`", about: "The width of a frame that is not for a terminal."},
		{name: "TERM", values: "`dumb`", used: "`spread`, `mesh`, `top`, `doctor`, `bench`, `demo`", about: "A terminal that cannot move its cursor or show colours."},
		{name: "LC_ALL", values: "a locale", used: "`top`", about: "Bars are drawn with characters beyond ASCII where the locale's are UTF-8. The first that is set of this one and the next two decides."},
		{name: "LC_CTYPE", values: "a locale", used: "`top`", about: "See `LC_ALL`."},
		{name: "LANG", values: "a locale", used: "`top`", about: "See `LC_ALL`."},
		{name: "KUBECONFIG", values: "a file; `~/.kube/config`", used: "`mesh`", about: "The cluster, where `--kubeconfig` does not say.", foreign: true},
		{name: "NODE_NAME", values: "a name", used: "`ropewalk-agent`", about: "The node, where `--node` does not say.", foreign: true},
		{name: "CREDENTIALS_DIRECTORY", values: "a directory", used: "systemd: `up`", about: "Where the credential `private-key` is. [Install](install.md#the-private-key-as-a-credential)."},
		{name: "NOTIFY_SOCKET", values: "a socket", used: "systemd: `run`, `up`, `reload`", about: "Where to tell a service manager that the tunnel is up, reloading or stopping."},
		{name: "SYSTEMD_EXEC_PID", values: "a process", used: "systemd: `run`, `up`, `reload`", about: "Whether the service manager started this very process; a hook's `ropewalk` is not the service."},
		{name: "JOURNAL_STREAM", values: "a device and inode", used: "systemd: `up`", about: "Whether standard error is the journal: the daemon then logs there."},
		{name: "WATCHDOG_USEC", values: "microseconds", used: "systemd: `run`", about: "Three times within it the daemon looks at itself, and tells the watchdog if all is well.", foreign: true},
		{name: "WATCHDOG_PID", values: "a process", used: "systemd: `run`", about: "Whom the watchdog is for.", foreign: true},
		{name: "GOMAXPROCS", values: "a number; the processors of the affinity mask and the cgroup's quota", used: "Go's runtime", about: "How many processors `--lanes` and `--workers` count with.", foreign: true},
		{name: "GOMEMLIMIT", values: "bytes; none", used: "Go's runtime", about: "The heap from which on memory is collected more eagerly.", foreign: true},
		{name: "GOGC", values: "percent; 100", used: "Go's runtime", about: "How much the heap may grow between two collections.", foreign: true},
	}
}
