package main

import (
	"regexp"
	"strings"
)

// rule is a kind of spec that can't run here.
type rule struct {
	match  *regexp.Regexp
	reason string
}

// selection is which specs run.
type selection struct {
	focus string
	leave []rule
}

// everything is all that upstream says of a cluster's network.
func everything() selection {
	return selection{focus: `\[sig-network\]`, leave: leftOut()}
}

// leftOut is what needs a cloud, or what this kernel has not; each with the reason.
func leftOut() []rule {
	rules := []rule{}
	for _, r := range []struct{ match, reason string }{
		{`node-Service: sctp`, "skips itself where there is SCTP, too: upstream can't ask by it from a node"},
		{`\[Feature:SCTPConnectivity\]`,
			"needs SCTP in the kernel, which this machine's has not; test/lab's TestSCTP does the same in a VM"},
		{`\[Feature:LoadBalancer\]`, "needs a cloud's load balancers"},
		{`\[Provider:GCE\]`, "needs Google's cloud"},
		{`\[Feature:Networking-(IPv4|IPv6|DNS)\]|DNS configMap nameserver Forward`,
			"needs the Internet, of which the cluster has none"},
		{`\[Feature:OffByDefault\]`, "needs a feature gate that is off by default"},
		{`Feature:KubeProxy(NFAcct|DaemonSetMigration)|should check kube-proxy urls|TCP CLOSE_WAIT ` +
			`timeout|restarting kube-proxy`, "asks kube-proxy itself, not what it does"},
		{`\[Feature:(PerformanceDNS|Networking-Performance)\]`, "measures, and says nothing of right or wrong"},
	} {
		rules = append(rules, rule{regexp.MustCompile(r.match), r.reason})
	}
	return rules
}

// shortened is what says most about Myelin in ten minutes on two cores: all of conformance, and of the rest what has a
// way through the datapath of its own.
func shortened() selection {
	s := everything()
	s.focus = `\[sig-network\].*(` + strings.Join([]string{
		`\[Conformance\]`,
		`Netpol NetworkPolicy.*('default-deny-all'|ingress access on one named port|updated policy|except ` +
			`clause|Ingress, Egress specified together|after they are deleted)`,
		`using UDP should enforce policy based on Ports`,
		`Services should (allow pods to hairpin|be rejected when no endpoints|implement service|preserve source pod ` +
			`IP|support externalTrafficPolicy=Local)`,
		`when ExternalTrafficPolicy changes|fallback to terminating endpoints|fallback to local terminating`,
		`Conntrack.*(NodePort service$|invalid conntrack)`,
		`zero downtime`,
		`Secondary IP Family.*(node-Service|affinity: udp|large requests)`,
	}, "|") + `)`
	return s
}

// flags are ginkgo's for the selection.
func (s selection) flags() []string {
	flags := []string{"--focus=" + s.focus}
	for _, r := range s.leave {
		flags = append(flags, "--skip="+r.match.String())
	}
	return flags
}

// reason is why a spec is left out; empty if it is not.
func (s spec) reason(rules []rule) string {
	for _, r := range rules {
		if r.match.MatchString(s.name) {
			return r.reason
		}
	}
	return ""
}

// network tells whether a spec is about the network.
func (s spec) network() bool { return strings.Contains(s.name, "[sig-network]") }

func (s spec) conformance() bool { return strings.Contains(s.name, "[Conformance]") }

func (s spec) policy() bool {
	return strings.Contains(s.name, "Netpol") || strings.Contains(s.name, "NetworkPolicy")
}
