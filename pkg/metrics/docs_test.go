// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ropewalk/ropewalk/pkg/drop"
	"github.com/ropewalk/ropewalk/test/golden"
)

// The page docs/metrics.md is written from the code: go test ./pkg/metrics -run Documentation -update
const docsHead = `# Metrics

` + "`ropewalk run --metrics 127.0.0.1:9820 wg0` (and `ropewalk up --metrics …`, or `Metrics = 127.0.0.1:9820` in its file) serves what the tunnel does to Prometheus, at `/metrics`;" + `
` + "`/healthz` answers as long as the process lives, `/readyz` once the interface is up and has a private key. Nothing is served" + `
unless asked for. Each scrape takes a snapshot: packets cost no more for it. This page is written by
` + "`go test ./pkg/metrics -update`." + `

| flag | what for |
| --- | --- |
| ` + "`--metrics HOST:PORT`" + ` | serve metrics there |
| ` + "`--metrics-config FILE`" + ` | TLS and basic authentication, as Prometheus' [web config](https://prometheus.io/docs/prometheus/latest/configuration/https/) says it; the health checks need the password too |
| ` + "`--metrics-per-peer auto\\|on\\|off`" + ` | metrics of single peers; auto shows them while there are at most %d |
| ` + "`--metrics-wireguard-names`" + ` | also the three names of the common WireGuard exporter, for dashboards that know them |

A peer's labels never change: ` + "`interface` and `public_key`. What may change is in `ropewalk_peer_info`; join it:" + `

` + "```" + `
rate(ropewalk_peer_receive_bytes_total[5m]) * on (interface, public_key) group_left (endpoint) ropewalk_peer_info
` + "```" + `

` + "`allowed_ips` there lists the first %d, and how many more there are. Keys in metrics are public ones. Beside the metrics below there" + `
are those of Go's runtime (` + "`go_…`) and of the process (`process_…`). [deploy/grafana](../deploy/grafana/ropewalk.json) has a" + `
dashboard, [deploy/prometheus](../deploy/prometheus/rules.yml) recording and alerting rules. Lane ` + "`slow`" + ` is what no lane carried.

An idle peer makes no handshake: that its last one is old means nothing by itself. The alert looks for peers to whom something is
sent, or persistent keepalives are on.

| metric | type | labels | what it says |
| --- | --- | --- | --- |
`

const docsSpread = `
## Spread for another WireGuard

` + "`ropewalk spread attach eth0 --port 51820 --watch --metrics 127.0.0.1:9821`" + ` serves these instead, for all devices of the network namespace:

| metric | type | labels | what it says |
| --- | --- | --- | --- |
`

const docsReasons = `
## Reasons

The label ` + "`reason` of `ropewalk_dropped_packets_total`" + `.

| stage | reason | why a packet was dropped |
| --- | --- | --- |
`

func writeDefinitions(b *strings.Builder, list []definition) {
	for _, d := range list {
		labels := "`" + strings.Join(strings.Fields(d.labels), "`, `") + "`"
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", d.name, d.kind, labels, d.help)
	}
}

func TestDocumentationListsAllMetricsAndReasons(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, docsHead, MaxPeers, maxPrefixes)
	writeDefinitions(&b, definitions[:])
	b.WriteString(docsSpread)
	writeDefinitions(&b, spreadDefinitions[:])
	b.WriteString(docsReasons)
	for r := drop.None + 1; r < drop.Count; r++ {
		fmt.Fprintf(&b, "| %s | `%s` | %s |\n", stage(r.String()), r, r.Help())
	}
	golden.Check(t, filepath.Join("..", "..", "docs", "metrics.md"), b.String())
}
