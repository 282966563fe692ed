package status

import (
	"fmt"
	"slices"
	"strings"

	"myelin/agent/feature"
	"myelin/service"
	"myelin/service/termination"
)

// Services is what the agent knows of Services.
type Services struct {
	// Attached says that programs are at sockets; else Why says why not.
	Attached                      bool
	Why                           string
	Services, Frontends, Backends int
	// Problems are what Services ask and don't get, at most feature.MaxErrors of
	// ProblemCount: "namespace/name: field: reason".
	Problems     []string
	ProblemCount int
	// Termination is of UDP sockets whose backend has gone.
	Termination termination.Status
	// Checks are health check node ports.
	Checks       Table
	HealthChecks HealthChecks
}

// HealthChecks counts backends of programmed Services.
type HealthChecks struct {
	Backends int // that are checked
	Failing  int
	ByDSR    int // whose checks travel as clients' packets by DSR, the others directly
}

// text is "; health checks of 3 backends, 2 by DSR, 1 failing"; empty if none is checked.
func (h HealthChecks) text() string {
	if h.Backends == 0 {
		return ""
	}
	text := "; health checks of " + feature.Plural(h.Backends, "backend")
	if h.ByDSR > 0 {
		text += fmt.Sprintf(", %d by DSR", h.ByDSR)
	}
	if h.Failing > 0 {
		text += fmt.Sprintf(", %d failing", h.Failing)
	}
	return text
}

// CountServices reads the tables of Services.
func CountServices(rows []*service.Service, frontends, backends int) Services {
	s := Services{Services: len(rows), Frontends: frontends, Backends: backends}
	for _, row := range rows {
		s.ProblemCount += len(row.Problems)
		for _, p := range row.Problems {
			s.Problems = append(s.Problems, row.Key().String()+": "+p)
		}
	}
	slices.Sort(s.Problems)
	s.Problems = s.Problems[:min(len(s.Problems), maxErrors)]
	return s
}

// services is the line about what sockets get that ask for a Service.
func (f *Facts) services() Feature {
	c := f.Config.SocketLB
	x := Feature{Name: "Services (socket)", State: Off, Wanted: onOff("socketLB.enabled", c.Enabled), Chosen: "off"}
	if !c.Enabled {
		x.Why = "addresses of Services are left to kube-proxy"
		if f.Settings.Services != 0 {
			x.Why = "pods get Services packet by packet, the node's own programs none"
		}
		return x
	}
	s := f.Services
	x.State, x.Why = OK, "a backend is chosen when a socket asks for a Service: packets are not changed"
	x.Cost = "per connection, of unconnected UDP per datagram; packets cost nothing"
	who := "sockets of pods and host"
	if f.Settings.SocketHostOnly != 0 {
		who = "sockets of the host"
	}
	x.Chosen = fmt.Sprintf("%s, %s, %s", who, feature.Plural(s.Frontends, "frontend"),
		feature.Plural(s.Backends, "backend"))
	if c.HostNamespaceOnly {
		x.Wanted += ", " + onOff("socketLB.hostNamespaceOnly", true)
		if f.Settings.SocketHostOnly == 0 {
			x.FallBack(tell + ": sockets of pods are translated too")
		}
	}
	if f.Settings.SetRetval == 0 {
		x.FallBack("the kernel lets no program choose an error (5.18 or later does): refused connections see EPERM")
		x.Cost = "what is refused for want of a backend looks forbidden to applications"
	}
	if !s.Attached {
		x.Chosen = "not attached, " + feature.Plural(s.Frontends, "frontend") + ", " +
			feature.Plural(s.Backends, "backend")
		x.Break(s.Why)
		x.Cost = "addresses of Services lead nowhere, unless kube-proxy serves them"
	}
	s.tell(&x)
	return x
}

// tell adds what Services don't get.
func (s *Services) tell(x *Feature) {
	feature.First(s.Problems, s.ProblemCount, x.FallBack)
}

// packets is the line about packets for Services: those from outside, and those that passed no socket hook.
func (f *Facts) packets() Feature {
	c := f.Config
	x := Feature{
		Name: "Services (packet)", State: Off, Chosen: "off",
		Wanted: onOff("kubeProxyReplacement", c.KubeProxyReplacement) + ", " +
			onOff("nodePort.enabled", c.NodePort.Enabled),
	}
	if f.Settings.Services == 0 {
		x.Why = "what comes from outside, and what passes no socket hook, is left to kube-proxy"
		return x
	}
	x.State, x.Why = OK, "clients outside, and what passes no socket hook"
	x.Cost = "a row for each flow, and per packet to find it"
	x.Wanted += ", loadBalancer.mode: " + c.LoadBalancer.Mode + ", loadBalancer.algorithm: " + c.LoadBalancer.Algorithm
	by := "the gateway's address"
	if c.RoutingMode != "tunnel" {
		var wires []string
		for _, w := range f.Wires {
			wires = append(wires, behind(&x, w, c.IPv4.Enabled, c.IPv6.Enabled, "for clients of Services",
				"what leaves by it for a backend on another node is dropped"))
		}
		by = "[" + strings.Join(wires, ", ") + "]"
	}
	if c.Direct() {
		x.Why += "; direct answers told of by " +
			map[string]string{"opt": "an option", "ipip": "IPIP", "geneve": "Geneve"}[c.LoadBalancer.DSRDispatch]
	}
	on := ""
	if list := c.NodePort.Addresses; len(list) > 0 {
		on = " on " + strings.Trim(fmt.Sprint(list), "[]")
	}
	x.Chosen = fmt.Sprintf("%s, %s; to other nodes behind %s ports %s; node ports %s%s",
		strings.ToUpper(c.LoadBalancer.Mode), c.LoadBalancer.Algorithm, by, c.ClientPorts(), c.NodePort.Range, on)
	if f.Settings.Quic != 0 {
		x.Chosen += "; QUIC connection IDs"
	}
	for _, m := range f.Maps {
		if m.Name == "nat_entries" {
			x.Chosen += "; " + feature.Plural(m.Entries, "flow")
		}
	}
	x.Chosen += f.Services.HealthChecks.text()
	if !c.SocketLB.Enabled {
		f.Services.tell(&x)
	}
	return x
}
