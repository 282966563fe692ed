package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	apiv1 "myelin/api/v1"
)

// serviceNouns are those about load balancing.
func serviceNouns() []noun {
	return []noun{
		{name: "service", short: "Manage Services", verbs: []verb{
			{name: "list", short: "List the addresses of Services with the backends that get new flows",
				table: "service-addresses", write: writeLines},
			{
				name: "get", short: "Show a Service's options, frontends, backends and problems",
				table: "service-details", by: "Service", arg: "NAMESPACE/NAME",
			},
			{name: "flows", short: "List the NAT entries of Services", table: "service-flows"},
			{name: "stats", short: "List packets, bytes and new flows by Service and backend",
				table: "service-stats"},
		}, more: serviceVerbs},
		{name: "backend", short: "Inspect Service backends", verbs: []verb{
			{name: "list", short: "List all backends with their states", table: "service-backends"},
		}, more: backendVerbs},
		gatewayNoun(),
	}
}

// writeLines is writeTable for cells of several lines, each of which has a line of its own.
func writeLines(w io.Writer, t *apiv1.ListResponse) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, strings.Join(t.GetColumns(), "\t"))
	for _, row := range t.GetRows() {
		cells := slices.Clone(row.GetCells())
		for i := range cells {
			cells[i] = cmp.Or(strings.ReplaceAll(cells[i], "\t", " "), "-")
		}
		for more := true; more; {
			rest := make([]string, len(cells))
			more = false
			for i, c := range cells {
				var cut bool
				cells[i], rest[i], cut = strings.Cut(c, "\n")
				more = more || cut
			}
			fmt.Fprintln(tw, strings.Join(cells, "\t"))
			cells = rest
		}
	}
	tw.Flush()
	return writeTrimmed(w, &b)
}
