package lab

import (
	"context"
	"net/netip"
	"os"
	"time"
)

// Status is the lab as it is at one moment, for people and, as JSON, for programs.
type Status struct {
	Name       string       `json:"name"`
	Dir        string       `json:"dir"`
	Created    time.Time    `json:"created"`
	Fabric     string       `json:"fabric"`
	Underlay   string       `json:"underlay"`
	MTU        int          `json:"mtu"`
	Supervisor string       `json:"supervisor"` // "running", "not running"
	Nodes      []NodeStatus `json:"nodes"`
	World      *WorldState  `json:"world,omitempty"`
	Unassigned []string     `json:"unassigned,omitempty"` // Pods without a node of the lab
	Problem    string       `json:"problem,omitempty"`    // with the manifests
}

// NodeStatus is one node of Status.
type NodeStatus struct {
	Name      string         `json:"name"`
	Netns     string         `json:"netns"`
	Addresses []netip.Addr   `json:"addresses"`
	PodCIDRs  []netip.Prefix `json:"podCIDRs"`
	Agent     string         `json:"agent"` // "ready", "starting", "stopped", "none"
	AgentPID  int            `json:"agentPID,omitempty"`
	Reason    string         `json:"reason,omitempty"` // why the agent is not ready
	Pods      []PodStatus    `json:"pods"`
}

// PodStatus is one pod of NodeStatus.
type PodStatus struct {
	Name        string       `json:"name"` // namespace/name
	Netns       string       `json:"netns"`
	Phase       string       `json:"phase"`
	Message     string       `json:"message,omitempty"`
	Terminating bool         `json:"terminating,omitempty"`
	HostNetwork bool         `json:"hostNetwork,omitempty"`
	Addresses   []netip.Addr `json:"addresses"`
	Restarts    int          `json:"restarts"`
}

// Status looks at the lab.
func (l *Lab) Status() (*Status, error) {
	st := &Status{
		Name: l.Name(), Dir: l.dir, Created: l.state.Created,
		Fabric: l.opts.Fabric, Underlay: l.opts.Underlay, MTU: l.opts.MTU,
		Supervisor: "not running",
	}
	if l.supervised() {
		st.Supervisor = "running"
	}
	if w := l.World(); w.err == nil {
		st.World = &w.state
	}
	pods, err := l.Pods()
	if err != nil {
		return nil, err
	}
	for _, n := range l.Nodes() {
		st.Nodes = append(st.Nodes, n.status(pods))
	}
	st.Unassigned, err = l.unassigned()
	if err != nil {
		st.Problem = err.Error()
	}
	return st, nil
}

func (n *Node) status(pods []*Pod) NodeStatus {
	st := NodeStatus{
		Name: n.name, Netns: n.netns, Addresses: n.Addrs(), PodCIDRs: n.PodCIDRs(), Agent: "none",
		Pods: []PodStatus{},
	}
	if _, err := os.Stat(n.path("agent.pid")); err == nil {
		p, ready := n.AgentProcess(), n.agentReady(context.Background())
		switch {
		case !p.Alive():
			st.Agent = "stopped"
		case ready != nil:
			st.Agent, st.AgentPID, st.Reason = "starting", p.PID, ready.Error()
		default:
			st.Agent, st.AgentPID = "ready", p.PID
		}
	}
	for _, p := range pods {
		if p.state.Node == n.name {
			st.Pods = append(st.Pods, p.status())
		}
	}
	return st
}

func (p *Pod) status() PodStatus {
	st := PodStatus{
		Name: p.name, Netns: p.netns, Phase: p.state.Phase, Message: p.state.Message,
		HostNetwork: p.state.HostNetwork, Addresses: p.Addrs(), Terminating: p.state.Terminating,
	}
	for _, c := range p.state.Containers {
		st.Restarts += c.Restarts
		if st.Message == "" && c.Message != "" {
			st.Message = c.Message
		}
	}
	return st
}

// unassigned names the Pods that no node of the lab runs.
func (l *Lab) unassigned() ([]string, error) {
	objects, err := l.objects()
	if err != nil {
		return nil, err
	}
	all, err := pods(objects)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range all {
		if l.Node(p.Spec.NodeName).err != nil {
			names = append(names, p.Namespace+"/"+p.Name)
		}
	}
	return names, nil
}
