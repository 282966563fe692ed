package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	flowpb "github.com/cilium/cilium/api/v1/flow"
	"k8s.io/apimachinery/pkg/labels"
)

func (c *compiler) addresses(f *flowpb.FlowFilter) {
	add(c, "source_ip", f.GetSourceIp(), address(func(f *flowpb.Flow) string { return f.GetIP().GetSource() }))
	add(c, "source_ip_xlated", f.GetSourceIpXlated(),
		address(func(f *flowpb.Flow) string { return f.GetIP().GetSourceXlated() }))
	add(c, "destination_ip", f.GetDestinationIp(),
		address(func(f *flowpb.Flow) string { return f.GetIP().GetDestination() }))
	add(c, "source_fqdn", f.GetSourceFqdn(), fqdn((*flowpb.Flow).GetSourceNames))
	add(c, "destination_fqdn", f.GetDestinationFqdn(), fqdn((*flowpb.Flow).GetDestinationNames))
	equal(c, "source_identity", f.GetSourceIdentity(), func(f *flowpb.Flow) uint32 {
		return f.GetSource().GetIdentity()
	})
	equal(c, "destination_identity", f.GetDestinationIdentity(), func(f *flowpb.Flow) uint32 {
		return f.GetDestination().GetIdentity()
	})
	add(c, "node_name", f.GetNodeName(), nodeName)
	add(c, "node_labels", f.GetNodeLabels(), selector((*flowpb.Flow).GetNodeLabels))
}

func (c *compiler) objects(f *flowpb.FlowFilter) {
	ends := []struct {
		name                             string
		pods, labels, services, clusters []string
		workloads                        []*flowpb.Workload
		endpoint                         func(*flowpb.Flow) *flowpb.Endpoint
		service                          func(*flowpb.Flow) *flowpb.Service
	}{
		{"source", f.GetSourcePod(), f.GetSourceLabel(), f.GetSourceService(), f.GetSourceClusterName(),
			f.GetSourceWorkload(), (*flowpb.Flow).GetSource, (*flowpb.Flow).GetSourceService},
		{"destination", f.GetDestinationPod(), f.GetDestinationLabel(), f.GetDestinationService(),
			f.GetDestinationClusterName(), f.GetDestinationWorkload(), (*flowpb.Flow).GetDestination,
			(*flowpb.Flow).GetDestinationService},
	}
	for _, e := range ends {
		add(c, e.name+"_pod", e.pods, named(func(f *flowpb.Flow) (string, string) {
			return e.endpoint(f).GetNamespace(), e.endpoint(f).GetPodName()
		}))
		add(c, e.name+"_label", e.labels, selector(func(f *flowpb.Flow) []string { return e.endpoint(f).GetLabels() }))
		add(c, e.name+"_service", e.services, named(func(f *flowpb.Flow) (string, string) {
			return e.service(f).GetNamespace(), e.service(f).GetName()
		}))
		add(c, e.name+"_workload", e.workloads, workload(e.endpoint))
		add(c, e.name+"_cluster_name", e.clusters, func(want string) (Match, error) {
			if want == "" {
				return nil, errors.New("the name is empty")
			}
			return func(f *flowpb.Flow) bool { return e.endpoint(f).GetClusterName() == want }, nil
		})
	}
}

// address matches an address, or the addresses in a prefix.
func address(of func(*flowpb.Flow) string) func(string) (Match, error) {
	return func(text string) (Match, error) {
		prefix, err := netip.ParsePrefix(text)
		if !strings.Contains(text, "/") {
			var addr netip.Addr
			if addr, err = netip.ParseAddr(text); err == nil {
				prefix = netip.PrefixFrom(addr, addr.BitLen())
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%q is not an IP address or CIDR", text)
		}
		return func(f *flowpb.Flow) bool {
			a, err := netip.ParseAddr(of(f))
			return err == nil && prefix.Contains(a)
		}, nil
	}
}

// named matches "namespace/prefix", "namespace/", "/prefix", and "prefix" in the namespace default.
func named(of func(*flowpb.Flow) (namespace, name string)) func(string) (Match, error) {
	return func(text string) (Match, error) {
		if text == "" {
			return nil, errors.New("the name is empty")
		}
		ns, prefix, found := strings.Cut(text, "/")
		if !found {
			ns, prefix = "default", text
		}
		return func(f *flowpb.Flow) bool {
			namespace, name := of(f)
			return (namespace != "" || name != "") && (ns == "" || ns == namespace) && strings.HasPrefix(name, prefix)
		}, nil
	}
}

func workload(of func(*flowpb.Flow) *flowpb.Endpoint) func(*flowpb.Workload) (Match, error) {
	return func(want *flowpb.Workload) (Match, error) {
		return func(f *flowpb.Flow) bool {
			for _, w := range of(f).GetWorkloads() {
				name, kind := want.GetName(), want.GetKind()
				if (name == "" || name == w.GetName()) && (kind == "" || kind == w.GetKind()) {
					return true
				}
			}
			return false
		}, nil
	}
}

// selector matches labels by a selector of Kubernetes, whose keys may have a source in front: "k8s:app=web",
// "reserved:host"; without one a label of any source matches.
func selector(of func(*flowpb.Flow) []string) func(string) (Match, error) {
	return func(text string) (Match, error) {
		s, err := labels.Parse(withSources(text))
		if err != nil {
			return nil, fmt.Errorf("%q is not a label selector: %w", text, err)
		}
		return func(f *flowpb.Flow) bool { return s.Matches(sourced(of(f))) }, nil
	}
}

// anySource is the source of keys that name none.
const anySource = "any"

// withSources writes the source of each key as Kubernetes lets a key begin: "k8s:app in (a,b),!x" becomes
// "k8s.app in (a,b),!any.x".
func withSources(text string) string {
	var out []string
	for _, part := range splitTop(text) {
		body := strings.TrimLeft(part, " \t!")
		end := strings.IndexAny(body, " \t=!<>")
		if end < 0 {
			end = len(body)
		}
		key := body[:end]
		if source, rest, ok := strings.Cut(key, ":"); ok {
			key = source + "." + rest
		} else if key != "" {
			key = anySource + "." + key
		}
		out = append(out, part[:len(part)-len(body)]+key+body[end:])
	}
	return strings.Join(out, ",")
}

// splitTop splits at commas that are in no parentheses.
func splitTop(text string) (parts []string) {
	depth, begin := 0, 0
	for i, r := range text {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			parts = append(parts, text[begin:i])
			begin = i + 1
		}
	}
	return append(parts, text[begin:])
}

// sourced are labels in the form "source:key=value" or "key=value", by keys as withSources writes them.
type sourced []string

// Lookup implements labels.Labels.
func (s sourced) Lookup(key string) (value string, found bool) {
	source, name, _ := strings.Cut(key, ".")
	for _, label := range s {
		k, v, _ := strings.Cut(label, "=")
		// Values may have colons, keys have none but for the source's.
		from, rest, ok := strings.Cut(k, ":")
		if !ok {
			from, rest = "", k
		}
		if rest == name && (source == anySource || source == from) {
			return v, true
		}
	}
	return "", false
}

// Has implements labels.Labels.
func (s sourced) Has(key string) bool {
	_, found := s.Lookup(key)
	return found
}

// Get implements labels.Labels.
func (s sourced) Get(key string) string {
	v, _ := s.Lookup(key)
	return v
}
