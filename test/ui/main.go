// Command ui serves Hubble's API with flows that it makes up, at a rate: the load of the browser tests of package ui.
//
//	go run ./test/ui -socket /tmp/load/hubble.sock -rate 5000
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"google.golang.org/grpc"

	"myelin/api"
)

func main() {
	socket := flag.String("socket", "", "unix socket to serve on")
	rate := flag.Int("rate", 5000, "flows a second")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *socket, *rate); err != nil {
		fmt.Fprintln(os.Stderr, "ui-load:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, socket string, rate int) error {
	if socket == "" || rate < 1 {
		return fmt.Errorf("-socket %q -rate %d: want a path, and 1 or more", socket, rate)
	}
	l, err := api.Listen(socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	observerpb.RegisterObserverServer(server, &load{rate: rate, begin: time.Now()})
	context.AfterFunc(ctx, server.Stop)
	fmt.Printf("serves %d flows a second on %s\n", rate, socket)
	return server.Serve(l)
}
