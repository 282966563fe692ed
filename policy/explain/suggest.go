package explain

import (
	"fmt"
	"slices"
	"strings"

	"myelin/policy"
)

// changes are what would turn a side's answer round.
func changes(s *Side, dir policy.Direction, of, peer Party, port string) []string {
	switch {
	case s.Allowed():
		return denials(s, dir, of)
	case s.Rule != nil:
		return []string{fmt.Sprintf("remove deny rule %s, or narrow it so that it doesn't mean %s on %s", s.Rule.Origin,
			peer, port)}
	}
	return permissions(s, dir, peer, port)
}

// denials are what must go for a flow to be denied.
func denials(s *Side, dir policy.Direction, of Party) (out []string) {
	switch {
	case of.Node == "":
		return nil
	case s.Rule == nil:
		return []string{fmt.Sprintf("add a policy that selects %s and denies it, or isolates it for %s", of.Name, dir)}
	}
	for _, c := range s.Rules {
		if c.Peer && c.Ports && c.Action == policy.Allow {
			out = append(out, fmt.Sprintf("remove or narrow allow rule %s", c.Origin))
		}
	}
	if len(s.Isolating) == 0 {
		out = append(out, fmt.Sprintf("isolate %s for %s: nothing does, and what no rule denies is allowed",
			of.Name, dir))
	}
	return out
}

// permissions are the rules that are nearly there, then a new one for each
// policy that isolates.
func permissions(s *Side, dir policy.Direction, peer Party, port string) (out []string) {
	for _, c := range s.Rules {
		switch {
		case c.Action != policy.Allow || c.Tier != policy.TierDefault:
		case c.Peer:
			out = append(out, fmt.Sprintf("add port %s to %s, which means the peer already", port, c.Origin))
		case c.Ports && !strings.HasPrefix(c.Origin.Ref.Kind, "Cilium"): // there, a rule has peers of one sort
			out = append(out, fmt.Sprintf("add to %s, which has the port already: %s", c.Origin,
				source(c.Origin.Ref.Kind,
					dir, peer)))
		}
	}
	for _, by := range s.Isolating {
		kind, _, named := strings.Cut(by, " ")
		if !named || !strings.HasSuffix(kind, "Policy") {
			out = append(out, fmt.Sprintf("add a policy that allows it: %s, port %s",
				source("NetworkPolicy", dir, peer), port))
			continue
		}
		out = append(out, fmt.Sprintf("add to %s spec.%s a rule: %s, port %s", by, dir, source(kind, dir, peer), port))
	}
	return out
}

// source is how an object of a kind names a peer.
func source(kind string, dir policy.Direction, peer Party) string {
	prefix := [...]string{"from", "to"}[dir]
	namespace, own := podLabels(peer.Labels)
	cilium := strings.HasPrefix(kind, "Cilium")
	entity := ""
	for _, l := range peer.Labels {
		if e, ok := strings.CutPrefix(l, "reserved:"); ok {
			entity = e
		}
	}
	switch {
	case namespace != "" && cilium:
		return fmt.Sprintf("%sEndpoints matchLabels {%s}", prefix, strings.Join(append(own,
			"k8s:io.kubernetes.pod.namespace: "+namespace), ", "))
	case namespace != "":
		return fmt.Sprintf("%s podSelector {%s} namespaceSelector {kubernetes.io/metadata.name: %s}", prefix,
			strings.Join(own, ", "), namespace)
	case cilium && peer.Node != "":
		return prefix + "Entities [host, remote-node]"
	case cilium && peer.Addr.IsValid():
		return fmt.Sprintf("%sCIDR [%s/%d]", prefix, peer.Addr, peer.Addr.BitLen())
	case cilium:
		return fmt.Sprintf("%sEntities [%s]", prefix, entity)
	case peer.Addr.IsValid():
		return fmt.Sprintf("%s ipBlock %s/%d", prefix, peer.Addr, peer.Addr.BitLen())
	case entity == "world-ipv6":
		return prefix + " ipBlock ::/0"
	case entity == "world-ipv4":
		return prefix + " ipBlock 0.0.0.0/0"
	}
	return prefix + " ipBlock of the addresses of " + peer.Name
}

// podLabels are a pod's namespace and the labels to select it by: those that
// its owner's controller adds to tell pods apart are no help.
func podLabels(labels []string) (namespace string, own []string) {
	for _, l := range labels {
		text, ok := strings.CutPrefix(l, "k8s:")
		key, value, _ := strings.Cut(text, "=")
		switch {
		case !ok || strings.HasPrefix(key, "io.cilium.k8s."):
		case key == "io.kubernetes.pod.namespace":
			namespace = value
		case slices.Contains([]string{"pod-template-hash", "controller-revision-hash",
			"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"}, key):
		default:
			own = append(own, key+": "+value)
		}
	}
	return namespace, own
}
