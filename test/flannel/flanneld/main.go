// SPDX-License-Identifier: Apache-2.0

// Command flanneld runs a backend of flannel on a node of the cluster's test (test/kube/cluster). Its argument is the node, as JSON.
package main

import (
	"log"
	"os"

	"github.com/ropewalk/ropewalk/test/flannel/node"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: flanneld NODE")
	}
	if err := node.Run(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}
