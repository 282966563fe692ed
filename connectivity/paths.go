package connectivity

import (
	"fmt"
	"net/netip"
	"slices"
)

func (p *planner) pods() {
	p.add("pod-to-pod/same-node", "A pod reaches another one of its node, and is seen by its own address.", "",
		step{checks: p.reach(p.client, p.server)})
	p.add("pod-to-pod/other-node", "A pod reaches one on another node, and is seen by its own address.", p.oneNode(),
		step{checks: p.reach(p.client, p.distant)})
	var large []check
	for _, server := range []*pod{p.server, p.distant} {
		for _, c := range p.reach(p.client, server) {
			switch c.probe.URL[:4] {
			case "tcp:":
				c.probe.Size, c.to = 256<<10, c.to+", 256 KiB"
			case "udp:":
				c.probe.Size, c.to = 4000, c.to+", 4,000 bytes in fragments"
			case "icmp":
				c.probe.Size, c.to = 1300, c.to+", 1,300 bytes"
			default:
				continue
			}
			large = append(large, c)
		}
	}
	p.add("pod-to-pod/large", "Much data, fragments and nearly full packets arrive: MTUs are right.", "",
		step{checks: large})
}

func (p *planner) nodes() {
	p.add("pod-to-host/same-node", "A pod reaches its own node.", "", step{checks: p.reach(p.client, p.nearHost)})
	p.add("pod-to-host/other-node", "A pod reaches another node.", p.oneNode(),
		step{checks: p.reach(p.client, p.farHost)})
	p.add("host-to-pod/same-node", "A node reaches a pod of its own.", "", step{checks: p.reach(p.nearHost, p.server)})
	p.add("host-to-pod/other-node", "A node reaches a pod on another node.", p.oneNode(),
		step{checks: p.reach(p.nearHost, p.distant)})
	var checks []check
	for _, a := range p.hostPort.hostAddrs {
		for _, from := range []*pod{p.client, p.distantHostFor(p.hostPort)} {
			checks = append(checks, check{
				from: from, target: p.hostPort, to: "hostport by http, at its node's address",
				by: []string{p.hostPort.name},
				probe: Probe{URL: "http://" + netip.AddrPortFrom(a, hostPortNumber).String() + "/",
					Timeout: answerTime},
			})
		}
	}
	p.add("host-port", "A pod's hostPort answers at its node's addresses, to pods and to another node.",
		"", step{checks: checks})
}

// distantHostFor is a host that a pod is not on, if there is one.
func (p *planner) distantHostFor(server *pod) *pod {
	if server.node == p.nearHost.node {
		return p.farHost
	}
	return p.nearHost
}

// tries is how often a Service with several backends is asked.
const tries = 6

func (p *planner) services() {
	servers := []string{p.server.name, p.distant.name}
	var cluster, affinity, hairpin []check
	for _, a := range p.addressesOf("echo") {
		for _, from := range []*pod{p.client, p.nearHost} {
			cluster = append(cluster, p.toService(from, "echo", a, httpPort, servers)...)
		}
	}
	for _, a := range p.addressesOf("sticky") {
		c := p.toService(p.client, "sticky", a, httpPort, servers)[0]
		c.one = true
		affinity = append(affinity, c)
	}
	for _, a := range p.addressesOf("self") {
		hairpin = append(hairpin, p.toService(p.server, "self", a, httpPort, []string{p.server.name})...)
	}
	p.add("service/cluster-ip", "Pods and nodes reach a Service's backends by its address, over TCP and UDP.",
		"", step{checks: cluster})
	p.add("service/affinity", "With sessionAffinity a client stays with one backend.", "", step{checks: affinity})
	p.add("service/hairpin", "A pod reaches itself by its Service.", "", step{checks: hairpin})
	p.nodePorts(servers)
	var balanced []check
	for _, a := range p.ingress {
		balanced = append(balanced, p.toService(p.client, "balanced", a, httpPort, servers)[:1]...)
	}
	skip := ""
	if len(p.ingress) == 0 {
		skip = "Services of type LoadBalancer get no addresses here"
	}
	p.add("service/load-balancer", "A LoadBalancer's address leads to its backends.", skip, step{checks: balanced})
}

// toService asks a Service several times by http, and once by udp.
func (p *planner) toService(client *pod, service string, a netip.Addr, port uint16, servers []string) []check {
	udp := port + udpPort - httpPort
	return []check{
		{from: client, to: "Service " + service + " by http", port: fmt.Sprintf("%d/TCP", port),
			probe: Probe{URL: "http://" + netip.AddrPortFrom(a, port).String() + "/", Count: tries,
				Timeout: answerTime}, by: servers},
		{from: client, to: "Service " + service + " by udp", port: fmt.Sprintf("%d/UDP", udp),
			probe: Probe{URL: "udp://" + netip.AddrPortFrom(a, udp).String(), Timeout: answerTime}},
	}
}

func (p *planner) nodePorts(servers []string) {
	var byPod, byHost, local []check
	for _, addrs := range [][]netip.Addr{p.nearHost.addrs, p.farHost.addrs} {
		for _, a := range addrs {
			if !slices.ContainsFunc(p.addressesOf("nodeport"), func(s netip.Addr) bool { return s.Is4() == a.Is4() }) {
				continue
			}
			for _, from := range []*pod{p.client, p.nearHost} {
				c := p.toService(from, "nodeport", a, p.nodePort["nodeport"], servers)[0]
				c.to = fmt.Sprintf("NodePort %d of %s by http", p.nodePort["nodeport"], a)
				if from.host {
					byHost = append(byHost, c)
				} else {
					byPod = append(byPod, c)
				}
			}
		}
	}
	for _, a := range p.distant.hostAddrs {
		c := p.toService(p.distantHostFor(p.distant), "local", a, p.nodePort["local"], []string{p.distant.name})[0]
		c.to = fmt.Sprintf("NodePort %d of %s, where its backend is, by http", p.nodePort["local"], a)
		local = append(local, c)
	}
	p.add("service/node-port/from-pod", "A pod reaches a NodePort at every node's addresses.", "", step{checks: byPod})
	p.add("service/node-port/from-host", "A node reaches a NodePort at its own and the other's addresses.", "",
		step{checks: byHost})
	p.add("service/external-traffic-local", "With externalTrafficPolicy Local the node of the backend answers.", "",
		step{checks: local})
}

// names are what DNS says.
func (p *planner) names() {
	kubernetes := check{from: p.client, to: "the name kubernetes.default",
		probe: Probe{URL: "dns4://" + "kubernetes.default.svc." + p.domain, Timeout: 2 * answerTime}}
	if p.kubernetes.Is6() {
		kubernetes.probe.URL = "dns6://" + kubernetes.probe.URL[len("dns4://"):]
	}
	kubernetes.by = []string{p.kubernetes.String()}
	p.add("dns/cluster", "Pods are told the address of a Service of the cluster.", p.noDNS,
		step{checks: []check{kubernetes}})
	var headless []check
	for _, six := range []bool{false, true} {
		var want []string
		for _, server := range []*pod{p.server, p.distant} {
			for _, a := range server.addrs {
				if a.Is6() == six {
					want = append(want, a.String())
				}
			}
		}
		if len(want) > 0 {
			scheme := map[bool]string{false: "dns4", true: "dns6"}[six]
			headless = append(headless, check{from: p.client, to: "the name of a headless Service, " + scheme, by: want,
				all: true,
				probe: Probe{URL: scheme + "://headless." + p.client.namespace + ".svc." + p.domain,
					Timeout: 2 * answerTime}})
		}
	}
	p.add("dns/headless", "A headless Service's name has the addresses of its pods.", p.noDNS, step{checks: headless})
}

// world is what is outside of the cluster, which is only contacted on request.
func (p *planner) world() {
	if p.external == "" {
		p.add("world", "Pods reach what is outside of the cluster.", "--external-target is not given")
		return
	}
	c := check{from: p.client, to: p.external, probe: Probe{URL: p.external, Timeout: 2 * answerTime}}
	p.add("world", "Pods reach what is outside of the cluster.", "", step{checks: []check{c}})
}
