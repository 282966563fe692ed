package show

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// Related is what a description tells beside the object itself.
type Related struct {
	Owner    string   // "ReplicaSet/web-1", what controls it
	Pods     []Item   // what it controls, or what a Service leads to
	Rejected []string // why agents reject it
	Notes    []string // what the lab says of it
}

// Describe writes an object at length.
func Describe(w io.Writer, i Item, r Related, now time.Time) error {
	d := &description{tw: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0), now: now}
	d.field("Name", i.Name)
	if i.Namespace != "" {
		d.field("Namespace", i.Namespace)
	}
	d.field("Kind", strings.TrimSuffix(i.FullName(), "/"+i.Name))
	d.field("Labels", pairs(i.Labels, ","))
	if r.Owner != "" {
		d.field("Controlled By", r.Owner)
	}
	if !i.Created.IsZero() {
		d.field("Age", Options{Now: now}.age(i.Created))
	}
	switch o := i.Object.(type) {
	case *corev1.Pod:
		d.pod(o, i)
	case *corev1.Service:
		d.service(o)
	default:
		header, wide := columns(i.Object)
		cells, more := i.cells()
		for n, name := range slices.Concat(header, wide) {
			d.field(title(name), slices.Concat(cells, more)[n])
		}
		if header == nil {
			d.spec(i.Object)
		}
	}
	d.list("Rejected", r.Rejected)
	d.list("Notes", r.Notes)
	if err := d.tw.Flush(); err != nil {
		return err
	}
	if len(r.Pods) == 0 {
		return nil
	}
	fmt.Fprintln(w, "Pods:")
	return Write(w, r.Pods, false, Options{Output: "wide", NoNamespaces: true, Now: now})
}

type description struct {
	tw  *tabwriter.Writer
	now time.Time
}

func (d *description) field(name, text string) { fmt.Fprintf(d.tw, "%s:\t%s\n", name, text) }

func (d *description) list(name string, lines []string) {
	for n, line := range lines {
		if n == 0 {
			d.field(name, line)
		} else {
			fmt.Fprintf(d.tw, "\t%s\n", line)
		}
	}
}

// title is a column's name as a field's: "UP-TO-DATE" is "Up-to-date".
func title(column string) string { return strings.ToUpper(column[:1]) + strings.ToLower(column[1:]) }

func (d *description) pod(o *corev1.Pod, i Item) {
	d.field("Node", orNone(o.Spec.NodeName))
	d.field("Status", podStatus(o))
	if text := cmp.Or(i.Reason, o.Status.Message); text != "" {
		d.field("Message", text)
	}
	var ips []string
	for _, ip := range o.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	d.field("IPs", orNone(strings.Join(ips, ",")))
	for n, c := range slices.Concat(o.Spec.InitContainers, o.Spec.Containers) {
		name := "Container"
		if n < len(o.Spec.InitContainers) {
			name = "Init Container"
		}
		d.field(name, c.Name)
		d.field("  Image", orNone(c.Image))
		if len(c.Command) > 0 {
			d.field("  Command", strings.Join(slices.Concat(c.Command, c.Args), " "))
		}
		for _, p := range c.Ports {
			d.field("  Port", fmt.Sprintf("%d/%s", p.ContainerPort, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
		}
		for _, st := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
			if st.Name == c.Name {
				d.field("  State", containerState(st))
				d.field("  Restarts", fmt.Sprint(st.RestartCount))
			}
		}
	}
}

func containerState(st corev1.ContainerStatus) string {
	switch {
	case st.State.Running != nil:
		return "Running"
	case st.State.Terminated != nil:
		text := fmt.Sprintf("Terminated, exit code %d", st.State.Terminated.ExitCode)
		if m := st.State.Terminated.Message; m != "" {
			text += ": " + m
		}
		return text
	}
	return "Waiting"
}

func (d *description) service(o *corev1.Service) {
	d.field("Selector", pairs(o.Spec.Selector, ","))
	d.field("Type", string(cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP)))
	var families []string
	for _, f := range o.Spec.IPFamilies {
		families = append(families, string(f))
	}
	d.field("IP Families", orNone(strings.Join(families, ",")))
	ips := o.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{orNone(o.Spec.ClusterIP)}
	}
	d.field("IPs", strings.Join(ips, ","))
	d.field("External IPs", externalIP(o))
	for _, p := range o.Spec.Ports {
		protocol := cmp.Or(p.Protocol, corev1.ProtocolTCP)
		d.field("Port", fmt.Sprintf("%s  %d/%s", cmp.Or(p.Name, "<unset>"), p.Port, protocol))
		target := p.TargetPort.String()
		if target == "0" {
			target = fmt.Sprint(p.Port)
		}
		d.field("  TargetPort", fmt.Sprintf("%s/%s", target, protocol))
		if p.NodePort != 0 {
			d.field("  NodePort", fmt.Sprintf("%d/%s", p.NodePort, protocol))
		}
	}
	if o.Spec.ExternalTrafficPolicy != "" {
		d.field("External Traffic Policy", string(o.Spec.ExternalTrafficPolicy))
	}
}

// spec writes an object of a kind that is not looked into.
func (d *description) spec(object any) {
	m, ok := object.(map[string]any)
	if !ok {
		return
	}
	for _, key := range []string{"spec", "specs", "data", "status"} {
		if m[key] == nil {
			continue
		}
		data, err := yaml.Marshal(m[key])
		if err != nil {
			continue // it came from YAML
		}
		fmt.Fprintf(d.tw, "%s:\n", title(key))
		for line := range strings.Lines(string(data)) {
			fmt.Fprintf(d.tw, "  %s", line)
		}
	}
}
