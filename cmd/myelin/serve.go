package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"myelin/lab/echo"
)

// serveCommand is `myelin lab serve`, the server for pods whose image can't be had.
func serveCommand() *cobra.Command {
	var opts echo.Options
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve HTTP that tells who answers whom, and TCP and UDP that send back what comes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts.Out = cmd.OutOrStdout()
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
	cmd.Flags().StringVar(&opts.Who, "who", "", "name to answer with (default the pod, or HOSTNAME)")
	return cmd
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
