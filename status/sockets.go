package status

import "fmt"

// tell is what old kernels don't.
const tell = "the kernel doesn't tell network namespaces apart (5.14 or later does)"

const noServices = "socketLB.enabled is false"

// socketFeature is a line about what Services ask of sockets beside a backend:
// nothing where Services are off.
func (f *Facts) socketFeature(name, key string, wanted bool) Feature {
	x := Feature{Name: name, State: Off, Wanted: onOff(key, wanted), Chosen: "off"}
	switch {
	case !f.Config.SocketLB.Enabled:
		x.Why = noServices
	case !wanted:
	case !f.Services.Attached:
		x.Why = "no programs are at sockets"
	default:
		x.State = OK
	}
	return x
}

// bindProtection tells whether processes of the host can listen on a port that a Service has on the node.
func (f *Facts) bindProtection() Feature {
	x := f.socketFeature("Bind Protection", "nodePort.bindProtection", f.Config.NodePort.BindProtection)
	if x.State == Off {
		return x
	}
	x.Chosen, x.Why, x.Cost = "ports of Services are refused to processes of the host",
		"what listens there hears nothing", "per bind"
	if f.Settings.BindProtection == 0 {
		x.Chosen = "off"
		x.FallBack(tell + ": ports of Services can be bound by processes of the host, which hear nothing then")
		x.Why, x.Cost = "", ""
	}
	return x
}

// socketTermination is what becomes of UDP sockets whose backend has gone.
func (f *Facts) socketTermination() Feature {
	const key = "socketLB.terminatePodConnections"
	pods, t := f.Config.SocketLB.TerminatePodConnections, f.Services.Termination
	x := f.socketFeature("Socket Termination", key, true)
	x.Wanted = onOff(key, pods)
	if x.State == Off {
		return x
	}
	x.Chosen, x.Why = "UDP sockets of pods and host", "their backend has gone, and they would not learn of it"
	x.Cost = "a look through all UDP sockets when backends go, once a second at most"
	if !pods || f.Settings.SocketHostOnly != 0 {
		x.Chosen = "UDP sockets of the host"
	}
	x.Chosen += fmt.Sprintf(", %d ended, by ", t.Ended)
	if t.Netlink == "" {
		x.Chosen += "bpf_sock_destroy"
	} else {
		x.Chosen += "netlink"
		x.FallBack(t.Netlink)
		x.Cost = "a list of all connected UDP sockets when backends go, ten times the time, once a second at most"
	}
	if t.Why != "" {
		x.Chosen, x.Why, x.Cost = "off", "", "connected UDP sockets go on sending to backends that have gone"
		x.FallBack(t.Why)
	}
	if t.Problem != "" {
		x.FallBack(t.Problem)
	}
	return x
}

// healthCheckPorts is what load balancers outside learn of this node.
func (f *Facts) healthCheckPorts() Feature {
	x := Feature{
		Name: "Health Check Ports", State: Off, Chosen: "off",
		Wanted: onOff("nodePort.enableHealthCheck", f.Config.NodePort.EnableHealthCheck),
	}
	switch {
	case !f.Config.SocketLB.Enabled:
		x.Why = noServices
		return x
	case !f.Config.NodePort.EnableHealthCheck:
		return x
	}
	c := f.Services.Checks
	x.State, x.Chosen = OK, fmt.Sprintf("%d of %d served", c.Done, c.Rows)
	x.Why = "of Services of type LoadBalancer with externalTrafficPolicy Local"
	for _, e := range c.Errors {
		x.FallBack(e)
	}
	if c.Failed > 0 {
		x.Cost = "load balancers hear of this node's endpoints from who has the port, such as kube-proxy, or not at all"
	}
	return x
}
