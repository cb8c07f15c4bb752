// SPDX-License-Identifier: Apache-2.0

// Command quic makes QUIC traffic for the comparison of implementations (test/bench): one connection with one stream, which sends
// for some seconds. It uses quic-go, which sends with GSO, and is a module of its own so that ropewalk's does not require quic-go.
//
//	quic server --listen ADDRESS:PORT
//	quic client [--seconds S] [--reverse] ADDRESS:PORT
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintf(os.Stderr, "quic: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("want server or client")
	}
	f := flag.NewFlagSet(args[0], flag.ContinueOnError)
	listen := f.String("listen", "0.0.0.0:5211", "address and port of the server")
	seconds := f.Float64("seconds", 3, "how long to send")
	reverse := f.Bool("reverse", false, "send from the server to the client")
	if err := f.Parse(args[1:]); err != nil {
		return err
	}
	switch {
	case args[0] == "server" && f.NArg() == 0:
		return serve(ctx, *listen)
	case args[0] == "client" && f.NArg() == 1 && *seconds > 0:
		r, err := request(ctx, f.Arg(0), order{Reverse: *reverse, Duration: time.Duration(*seconds * float64(time.Second))})
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(r)
	}
	return fmt.Errorf("unexpected arguments %q", args)
}
