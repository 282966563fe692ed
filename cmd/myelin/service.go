package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	apiv1 "myelin/api/v1"
)

// serviceNouns are those about load balancing.
func serviceNouns() []noun {
	return []noun{
		{name: "service", short: "Services and what they lead to", verbs: []verb{
			{name: "list", short: "List the addresses of Services with the backends that get new flows", table: "service-addresses", write: writeAddresses},
			{name: "get", short: "Show a Service's options and problems", table: "services", by: "Service", arg: "NAMESPACE/NAME"},
			{name: "flows", short: "List the flows that packets are translated for", table: "service-flows"},
		}, more: serviceVerbs},
		{name: "backend", short: "What stands behind Services", verbs: []verb{
			{name: "list", short: "List all backends with their states", table: "service-backends"},
		}, more: backendVerbs},
	}
}

// addressColumns are those that `cilium-dbg service list` has; more can be
// asked by --filter and are in JSON.
const addressColumns = 4

// writeAddresses gives each backend a line.
func writeAddresses(w io.Writer, t *apiv1.ListResponse) error {
	var b bytes.Buffer
	tw := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, strings.Join(firstCells(t.GetColumns()), "\t"))
	for _, row := range t.GetRows() {
		cells := firstCells(row.GetCells())
		for {
			more := make([]string, len(cells))
			for i, c := range cells {
				cells[i], more[i], _ = strings.Cut(c, "\n")
			}
			fmt.Fprintln(tw, strings.Join(cells, "\t"))
			if cells = more; strings.Join(more, "") == "" {
				break
			}
		}
	}
	tw.Flush()
	return writeTrimmed(w, &b)
}

// firstCells is a copy: what was asked stays as it is.
func firstCells(cells []string) []string {
	return append([]string(nil), cells[:min(len(cells), addressColumns)]...)
}
