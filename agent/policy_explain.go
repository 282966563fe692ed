package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	apiv1 "myelin/api/v1"
	"myelin/cluster"
	"myelin/event"
	"myelin/flow"
	"myelin/kube/manifests"
	"myelin/policy"
	"myelin/policy/explain"
	"myelin/policy/replay"
	"myelin/service/nat"
)

// policed waits for the engine of policies, or refuses.
func (s *answers) policed(ctx context.Context) error {
	if err := s.agent.progress.wait(ctx, s.stopping); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return s.agent.policies.refuse(policyRowsTable)
}

// TracePolicies implements apiv1.AgentServer.
func (s *answers) TracePolicies(ctx context.Context,
	r *apiv1.TracePoliciesRequest) (*apiv1.TracePoliciesResponse, error) {
	if err := s.policed(ctx); err != nil {
		return nil, err
	}
	pl := s.agent.policies
	q, notes := explain.Request{From: r.GetFrom(), To: r.GetTo(), Port: r.GetPort()}, []string(nil)
	if r.GetFlow() != "" {
		var err error
		if q, notes, err = pl.flowAsked(r.GetFlow()); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	content, err := explain.ParseContent(explain.Content{HTTP: r.GetHttp(), Host: r.GetHost(), Headers: r.GetHeaders(),
		DNS: r.GetDns()})
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	q.Content, q.FQDN = content, r.GetFqdn()
	t, err := pl.explainer().Trace(q)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	t.Notes = append(notes, t.Notes...)
	data, err := json.Marshal(t)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "write the trace: %v", err)
	}
	return &apiv1.TracePoliciesResponse{Json: data}, nil
}

// flowAsked reads a flow, or finds the one with an ID, and says what its row has.
func (pl *policies) flowAsked(text string) (q explain.Request, notes []string, err error) {
	byID := !strings.ContainsAny(text, ">→")
	if !byID {
		if q, err = explain.ParseFlow(text); err != nil {
			return q, nil, err
		}
	}
	found := false
	err = pl.eachQuestion(func(f *flow.Flow, of explain.Flow) bool {
		is := explain.Request{From: of.Src.Addr.String(), To: of.Dst.Addr.String(),
			Port: fmt.Sprintf("%d/%d", of.Port, of.Proto)}
		if byID && f.ID != text || !byID && !sameFlow(text, f) {
			return true
		}
		q, found = is, true
		verdict := "lets it pass"
		if f.Denied {
			verdict = "denies it"
		}
		if rules := f.Rules.String(); rules != "" {
			verdict += ", " + rules
		}
		notes = append(notes, fmt.Sprintf("flow %s has a row on this node, which %s", f.ID, verdict))
		return false
	})
	if err == nil && byID && !found {
		err = fmt.Errorf("--flow %s: no flow of this node has this ID: myelin flow list -o json has the IDs", text)
	}
	return q, notes, err
}

// sameFlow reports whether a text means a flow.
func sameFlow(text string, f *flow.Flow) bool {
	name := flowName(f.Src, f.Dst, f.Protocol)
	return strings.ReplaceAll(strings.ReplaceAll(text, " ", ""), "→", "->") == name
}

// flowName is as --flow takes it.
func flowName(src, dst event.Party, protocol string) string {
	at := func(p event.Party) string {
		if p.Addr.Is6() {
			return fmt.Sprintf("[%s]:%d", p.Addr, p.Port)
		}
		return fmt.Sprintf("%s:%d", p.Addr, p.Port)
	}
	return at(src) + "->" + at(dst) + "/" + protocol
}

// eachQuestion calls fn for each flow that has a row, with what policies are
// asked about it, until it returns false.
func (pl *policies) eachQuestion(fn func(*flow.Flow, explain.Flow) bool) error {
	clock, err := pl.flows.Clock()
	if err != nil {
		return err
	}
	names := pl.names()
	return flow.Each(pl.Datapath, func(k *flow.Key, r *flow.Row) bool {
		f := flow.Name(names, clock, k, r)
		if f.Expired {
			return true
		}
		q := explain.Flow{Src: explain.FlowEnd{Addr: f.Src.Addr}, Dst: explain.FlowEnd{Addr: f.Dst.Addr},
			Proto: k.Proto, Port: f.Dst.Port}
		q.SrcNode, q.DstNode = pl.nodeOf(f.Src.Addr), pl.nodeOf(f.Dst.Addr)
		switch k.Proto { // the row has the echo's identifier, rules its type
		case policy.ProtoICMP:
			q.Port = 8
		case policy.ProtoICMPv6:
			q.Port = 128
		}
		return fn(f, q)
	})
}

// nodeOf is the node that an address is on, empty for one outside.
func (pl *policies) nodeOf(addr netip.Addr) string {
	txn := pl.DB.ReadTxn()
	for p := range pl.Cluster.Pods.List(txn, cluster.PodsByAddress(addr)) {
		if p.OwnsAddresses() {
			return p.NodeName
		}
	}
	if _, own := pl.names().Slot(addr); own {
		return pl.Config.Myelin.NodeName
	}
	if n, _, ok := pl.Cluster.Nodes.Get(txn, cluster.NodeByAddress(addr)); ok {
		return n.Name
	}
	return ""
}

// diffTimeout bounds a comparison; what was found until then is answered.
const diffTimeout = 20 * time.Second

// DiffPolicies implements apiv1.AgentServer.
func (s *answers) DiffPolicies(ctx context.Context, r *apiv1.DiffPoliciesRequest) (*apiv1.DiffPoliciesResponse, error) {
	if err := s.policed(ctx); err != nil {
		return nil, err
	}
	edit, err := s.agent.policies.policyEdit(r)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, diffTimeout)
	defer cancel()
	d, err := s.agent.policies.difference(ctx, edit, r)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(d)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "write the difference: %v", err)
	}
	return &apiv1.DiffPoliciesResponse{Json: data}, nil
}

// difference compares flows that were recorded, or those that there are.
func (pl *policies) difference(ctx context.Context, edit explain.Edit,
	r *apiv1.DiffPoliciesRequest) (d any, err error) {
	if len(r.GetRecording()) > 0 {
		var rec replay.Recording
		if err := json.Unmarshal(r.GetRecording(), &rec); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "read the recording: %v", err)
		}
		d, err = pl.explainer().Replay(ctx, edit, &rec, r.GetAll())
	} else {
		var flows []explain.CurrentFlow
		if flows, err = pl.currentFlows(); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		d, err = pl.explainer().Diff(ctx, edit, flows)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "compare policies: %v", err)
	}
	return d, nil
}

// policyEdit reads what is about to be applied.
func (pl *policies) policyEdit(r *apiv1.DiffPoliciesRequest) (explain.Edit, error) {
	edit := explain.Edit{Policies: map[policy.Ref]*policy.Object{}, Groups: map[string]*policy.Group{}}
	var errs []error
	for _, file := range r.GetFiles() {
		policies, groups, err := manifests.ReadPolicies(file.GetYaml(), file.GetName(), time.Now())
		errs = append(errs, err)
		for _, p := range policies {
			if edit.Policies[p.Ref] != nil {
				errs = append(errs, fmt.Errorf("%s: %s is in another file, too", file.GetName(), p.Ref))
			}
			edit.Policies[p.Ref] = p
		}
		for _, g := range groups {
			edit.Groups[g.Name] = g
		}
	}
	txn := pl.DB.ReadTxn()
	for _, text := range r.GetDelete() {
		kind, name, ok := strings.Cut(text, " ")
		if !ok {
			kind, name, ok = strings.Cut(text, "/")
		}
		ref := policy.Ref{Kind: kind, Key: cluster.Key{Name: name}}
		if namespace, rest, some := strings.Cut(name, "/"); some {
			ref.Key = cluster.Key{Namespace: namespace, Name: rest}
		}
		_, _, policies := pl.tables.Policies.Get(txn, policy.ObjectByRef(ref))
		_, _, groups := pl.tables.Groups.Get(txn, policy.GroupByName(name))
		switch {
		case ok && policies:
			edit.Policies[ref] = nil
		case ok && groups && kind == "CiliumCIDRGroup":
			edit.Groups[name] = nil
		default:
			errs = append(errs,
				fmt.Errorf("--delete %s: there is no such policy: want \"KIND NAMESPACE/NAME\" as myelin policy "+
					"list has them", text))
		}
	}
	if len(edit.Policies)+len(edit.Groups)+len(errs) == 0 {
		errs = append(errs, errors.New("nothing to compare: want a file of policies, or --delete"))
	}
	return edit, errors.Join(errs...)
}

// currentFlows are all that have a row here, also of Services.
func (pl *policies) currentFlows() (out []explain.CurrentFlow, err error) {
	seen := map[string]bool{}
	add := func(name string, q explain.Flow) {
		if !seen[name] {
			seen[name] = true
			out = append(out, explain.CurrentFlow{Name: name, Flow: q})
		}
	}
	err = pl.eachQuestion(func(f *flow.Flow, q explain.Flow) bool {
		add(flowName(f.Src, f.Dst, f.Protocol), q)
		return true
	})
	if err != nil || pl.services.services == nil {
		return out, err
	}
	clock, err := pl.flows.Clock()
	if err != nil {
		return nil, err
	}
	none := func(uint32) string { return "" }
	err = nat.Entries(pl.Datapath, pl.names(), none, clock, func(t *nat.Entry) bool {
		if p, err := explain.ParsePort(fmt.Sprintf("%d/%s", t.Backend.Port, t.Protocol)); err == nil && !t.Expired {
			q := explain.Flow{Src: explain.FlowEnd{Addr: t.Client.Addr}, Dst: explain.FlowEnd{Addr: t.Backend.Addr},
				Proto: p.Proto, Port: p.First}
			q.SrcNode, q.DstNode = pl.nodeOf(t.Client.Addr), pl.nodeOf(t.Backend.Addr)
			add(flowName(t.Client, t.Backend, t.Protocol), q)
		}
		return true
	})
	return out, err
}
