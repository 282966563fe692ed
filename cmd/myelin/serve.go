package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"myelin/lab/echo"
)

// serveCommand is `myelin lab serve`, the server for pods whose image can't be had.
func serveCommand() *cobra.Command {
	var (
		opts  echo.Options
		ports []string
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve HTTP that names the server and its client, and TCP and UDP echo",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Out = cmd.OutOrStdout()
			if len(ports) > 0 {
				if err := servePorts(&opts, ports); err != nil {
					return err
				}
			}
			if opts.Who == "" {
				opts.Who = os.Getenv("MYELIN_LAB_POD")
			}
			if opts.Who == "" {
				opts.Who = os.Getenv("HOSTNAME")
			}
			ctx, stop := untilSignal(cmd)
			defer stop()
			return echo.Serve(ctx, opts)
		},
	}
	cmd.Flags().IntSliceVar(&opts.HTTP, "http", []int{8080}, "ports for HTTP")
	cmd.Flags().IntSliceVar(&opts.TCP, "tcp", []int{7000}, "ports for TCP echo")
	cmd.Flags().IntSliceVar(&opts.UDP, "udp", []int{7001}, "ports for UDP echo")
	cmd.Flags().StringSliceVar(&ports, "ports", nil,
		"serve these instead, e.g. 80/TCP,53/UDP: HTTP on those of TCP, UDP echo on those of UDP")
	cmd.Flags().StringVar(&opts.Who, "who", "", "name to answer with (default the pod, or HOSTNAME)")
	return cmd
}

// servePorts makes ports, as a container names them, what is served.
func servePorts(opts *echo.Options, ports []string) error {
	opts.HTTP, opts.TCP, opts.UDP = nil, nil, nil
	for _, p := range ports {
		number, protocol, _ := strings.Cut(p, "/")
		n, err := strconv.ParseUint(number, 10, 16)
		switch {
		case err != nil || n == 0:
			return fmt.Errorf("--ports %s: want a port from 1 to 65535 and its protocol, e.g. 80/TCP", p)
		case protocol == "" || protocol == "TCP":
			opts.HTTP = append(opts.HTTP, int(n))
		case protocol == "UDP":
			opts.UDP = append(opts.UDP, int(n))
		default:
			fmt.Fprintf(opts.Out, "port %s is not served: TCP and UDP are\n", p)
		}
	}
	return nil
}

// callCommand is `myelin lab call`, the client for machines without curl.
func callCommand() *cobra.Command {
	var timeout, wait time.Duration
	cmd := &cobra.Command{
		Use:     "call URL",
		Short:   "Ask a server once, over http, tcp or udp",
		Example: "  myelin lab exec default/client -- myelin lab call http://10.0.2.2:8080/",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for end := time.Now().Add(wait); ; {
				ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
				answer, err := echo.Call(ctx, args[0])
				cancel()
				if err != nil && time.Now().Before(end) {
					time.Sleep(50 * time.Millisecond)
					continue
				}
				fmt.Fprint(cmd.OutOrStdout(), answer)
				return err
			}
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Second, "for one attempt")
	cmd.Flags().DurationVar(&wait, "wait", 0, "go on trying for this long")
	return cmd
}
