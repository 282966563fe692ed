// Package show writes Kubernetes objects for people: tables with the columns of kubectl, YAML, JSON, and descriptions.
package show

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/yaml"
)

// Item is an object to show.
type Item struct {
	Resource        string // plural name of the kind, e.g. "pods"
	Group           string // of the kind's API; empty for the core group
	Namespace, Name string // Namespace is empty for kinds without
	Created         time.Time
	Labels          map[string]string
	Object          any    // of k8s.io/api where columns are known for the kind, else what YAML decodes to
	Reason          string // of a Pod that no node suits: why
	Restarts        int    // of a Pod
}

// FullName is "deployment.apps/web", as kubectl has it.
func (i Item) FullName() string {
	name := singular(i.Resource)
	if i.Group != "" {
		name += "." + i.Group
	}
	return name + "/" + i.Name
}

// singular is the name of one object of a resource.
func singular(resource string) string {
	for from, to := range map[string]string{"ies": "y", "sses": "ss"} {
		if s, ok := strings.CutSuffix(resource, from); ok {
			return s + to
		}
	}
	return strings.TrimSuffix(resource, "s")
}

// Options say how to write.
type Options struct {
	Output       string // empty, wide, name, yaml or json
	NoNamespaces bool   // no column for them
	ShowLabels   bool
	NoHeaders    bool
	Now          time.Time
}

// Outputs are what Options.Output can be.
func Outputs() []string { return []string{"", "wide", "name", "yaml", "json"} }

// Write writes items; those of one resource stand together.
func Write(w io.Writer, items []Item, one bool, o Options) error {
	switch o.Output {
	case "yaml", "json":
		return encode(w, items, one, o.Output)
	case "name":
		for _, i := range items {
			if _, err := fmt.Fprintln(w, i.FullName()); err != nil {
				return err
			}
		}
		return nil
	}
	var resources []string
	for _, i := range items {
		if !slices.Contains(resources, i.Resource) {
			resources = append(resources, i.Resource)
		}
	}
	for n, resource := range resources {
		if n > 0 {
			fmt.Fprintln(w)
		}
		of := slices.DeleteFunc(slices.Clone(items), func(i Item) bool { return i.Resource != resource })
		if err := o.table(w, of, len(resources) > 1); err != nil {
			return err
		}
	}
	return nil
}

// encode writes the object, or a List where not one was asked for.
func encode(w io.Writer, items []Item, one bool, format string) error {
	all := []any{} // a List without items has an empty array
	for _, i := range items {
		all = append(all, i.Object)
	}
	var out any = map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": all}
	if one && len(all) == 1 {
		out = all[0]
	}
	var data []byte
	var err error
	if format == "json" {
		data, err = json.MarshalIndent(out, "", "    ")
		data = append(data, '\n')
	} else {
		data, err = yaml.Marshal(out)
	}
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// table writes items of one resource. With several resources their names say which one.
func (o Options) table(w io.Writer, items []Item, several bool) error {
	tw := tabwriter.NewWriter(w, 0, 8, 3, ' ', 0)
	header, wide := columns(items[0].Object)
	names := slices.Concat(header, []string{"AGE"})
	if o.Output == "wide" {
		names = append(names, wide...)
	}
	if items[0].Namespace != "" && !o.NoNamespaces {
		names = append([]string{"NAMESPACE", "NAME"}, names...)
	} else {
		names = append([]string{"NAME"}, names...)
	}
	if o.ShowLabels {
		names = append(names, "LABELS")
	}
	if !o.NoHeaders {
		fmt.Fprintln(tw, strings.Join(names, "\t"))
	}
	for _, i := range items {
		cells, more := i.cells()
		row := slices.Concat(cells, []string{o.age(i.Created)})
		if o.Output == "wide" {
			row = append(row, more...)
		}
		name := i.Name
		if several {
			name = i.FullName()
		}
		row = append([]string{name}, row...)
		if i.Namespace != "" && !o.NoNamespaces {
			row = append([]string{i.Namespace}, row...)
		}
		if o.ShowLabels {
			row = append(row, pairs(i.Labels, ","))
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

func (o Options) age(since time.Time) string {
	if since.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(o.Now.Sub(since))
}

// pairs is a map as "key=value" in order, "<none>" for an empty one.
func pairs(m map[string]string, separator string) string {
	var all []string
	for k, v := range m {
		all = append(all, k+"="+v)
	}
	slices.Sort(all)
	return orNone(strings.Join(all, separator))
}

func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}
