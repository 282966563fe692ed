package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// savedFormat is the number of the format of what is kept of policies. A file of
// another format is not read.
const savedFormat = 1

// The types below are the model as it is kept. Nil and empty lists of peers and of
// ports mean opposite things, so no list is left out.
type (
	savedFile struct {
		Format   int           `json:"format"`
		Policies []savedObject `json:"policies"`
		Groups   []*Group      `json:"groups"`
	}
	savedObject struct {
		Ref     Ref               `json:"ref"`
		Labels  map[string]string `json:"labels,omitempty"`
		Source  string            `json:"source"`
		InForce Version           `json:"inForce,omitempty"`
		Since   time.Time         `json:"since"`
		Specs   []savedSpec       `json:"specs"`
	}
	savedSpec struct {
		Subject    []Requirement         `json:"subject"`
		Nodes      bool                  `json:"nodes"`
		Tier       Tier                  `json:"tier"`
		Priority   int32                 `json:"priority"`
		Isolates   [2]bool               `json:"isolates"`
		Rules      []savedRule           `json:"rules"`
		Required   [2][2][][]Requirement `json:"required"`
		Log        string                `json:"log,omitempty"`
		Unenforced []string              `json:"unenforced"`
	}
	savedRule struct {
		Origin     Origin      `json:"origin"`
		Direction  Direction   `json:"direction"`
		Action     Action      `json:"action"`
		Peers      []savedPeer `json:"peers"`
		Ports      []savedPort `json:"ports"`
		Unenforced []string    `json:"unenforced"`
		// Proxied has what the rule matches if that needs the proxy. Peers is empty then: an agent of a version that
		// does not know of the proxy must not take the rule for one without.
		Proxied *savedProxied `json:"proxied,omitempty"`
	}
	savedProxied struct {
		Peers []savedPeer `json:"peers"`
		Ports []savedPort `json:"ports"`
		L7    *L7         `json:"l7,omitempty"`
	}
	savedPort struct {
		Proto uint8  `json:"proto"`
		First uint16 `json:"first"`
		Last  uint16 `json:"last"`
		Name  string `json:"name,omitempty"`
	}
	savedPeer struct {
		Endpoints *[]Requirement  `json:"endpoints,omitempty"`
		Entity    string          `json:"entity,omitempty"`
		Nodes     *[]Requirement  `json:"nodes,omitempty"`
		Prefixes  *savedPrefixes  `json:"prefixes,omitempty"`
		Service   *savedService   `json:"service,omitempty"`
		Names     []NamePattern   `json:"names,omitempty"`
		Required  [][]Requirement `json:"required"`
	}
	savedPrefixes struct {
		Include       []netip.Prefix `json:"include"`
		Except        []netip.Prefix `json:"except"`
		Group         string         `json:"group,omitempty"`
		GroupSelector *[]Requirement `json:"groupSelector,omitempty"`
		Pods          bool           `json:"pods,omitempty"`
	}
	savedService struct {
		Namespace string         `json:"namespace,omitempty"`
		Name      string         `json:"name,omitempty"`
		Selector  *[]Requirement `json:"selector,omitempty"`
	}
)

// mapped is a list of others; nil of nil.
func mapped[A, B any](list []A, f func(A) B) []B {
	if list == nil {
		return nil
	}
	out := make([]B, len(list))
	for i, v := range list {
		out[i] = f(v)
	}
	return out
}

func plain(s Selector) []Requirement { return s }

func selector(s []Requirement) Selector { return s }

func saveObject(o *Object) savedObject {
	return savedObject{Ref: o.Ref, Labels: o.Labels, Source: o.Source, InForce: o.InForce, Since: o.Since,
		Specs: mapped(o.Specs, saveSpec)}
}

func (o *savedObject) load() *Object {
	out := &Object{Ref: o.Ref, Labels: o.Labels, Source: o.Source, InForce: o.InForce, Since: o.Since}
	out.Specs = mapped(o.Specs, func(s savedSpec) Spec {
		spec := s.load()
		spec.Ref = o.Ref
		return spec
	})
	return out
}

func saveSpec(s Spec) savedSpec {
	out := savedSpec{
		Subject: s.Subject, Nodes: s.Nodes, Tier: s.Tier, Priority: s.Priority, Isolates: s.Isolates,
		Log: s.Log, Unenforced: s.Unenforced, Rules: mapped(s.Rules, saveRule),
	}
	for d := range s.Required {
		for a, list := range s.Required[d] {
			out.Required[d][a] = mapped(list, plain)
		}
	}
	return out
}

func (s *savedSpec) load() Spec {
	out := Spec{
		Subject: s.Subject, Nodes: s.Nodes, Tier: s.Tier, Priority: s.Priority, Isolates: s.Isolates,
		Log: s.Log, Unenforced: s.Unenforced, Rules: mapped(s.Rules, savedRule.load),
	}
	for d := range s.Required {
		for a, list := range s.Required[d] {
			out.Required[d][a] = mapped(list, selector)
		}
	}
	return out
}

func saveRule(r Rule) savedRule {
	out := savedRule{
		Origin: r.Origin, Direction: r.Direction, Action: r.Action, Unenforced: r.Unenforced, Peers: mapped(r.Peers,
			savePeer),
		Ports: mapped(r.Ports, func(p Port) savedPort { return savedPort(p) }),
	}
	if r.NeedsProxy() {
		out.Proxied = &savedProxied{Peers: out.Peers, Ports: out.Ports, L7: r.L7}
		out.Peers, out.Ports = []savedPeer{}, nil
	}
	return out
}

func (r savedRule) load() Rule {
	var l7 *L7
	if p := r.Proxied; p != nil {
		r.Peers, r.Ports, l7 = p.Peers, p.Ports, p.L7
	}
	return Rule{
		Origin: r.Origin, Direction: r.Direction, Action: r.Action, Unenforced: r.Unenforced, Peers: mapped(r.Peers,
			savedPeer.load),
		Ports: mapped(r.Ports, func(p savedPort) Port { return Port(p) }), L7: l7,
	}
}

func savePeer(p Peer) savedPeer {
	out := savedPeer{
		Endpoints: (*[]Requirement)(p.Endpoints), Entity: p.Entity, Nodes: (*[]Requirement)(p.Nodes),
		Names: p.Names, Required: mapped(p.Required, plain),
	}
	if x := p.Prefixes; x != nil {
		out.Prefixes = &savedPrefixes{Include: x.Include, Except: x.Except, Group: x.Group,
			GroupSelector: (*[]Requirement)(x.GroupSelector), Pods: x.Pods}
	}
	if s := p.Service; s != nil {
		out.Service = &savedService{Namespace: s.Namespace, Name: s.Name, Selector: (*[]Requirement)(s.Selector)}
	}
	return out
}

func (p savedPeer) load() Peer {
	out := Peer{
		Endpoints: (*Selector)(p.Endpoints), Entity: p.Entity, Nodes: (*Selector)(p.Nodes), Names: p.Names,
		Required: mapped(p.Required, selector),
	}
	if x := p.Prefixes; x != nil {
		out.Prefixes = &Prefixes{Include: x.Include, Except: x.Except, Group: x.Group,
			GroupSelector: (*Selector)(x.GroupSelector), Pods: x.Pods}
	}
	if s := p.Service; s != nil {
		out.Service = &ServicePeer{Namespace: s.Namespace, Name: s.Name, Selector: (*Selector)(s.Selector)}
	}
	return out
}

// readSaved reads what was kept.
func readSaved(data []byte) (*savedFile, error) {
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, err
	}
	if head.Format != savedFormat {
		return nil, fmt.Errorf("it has format %d, not %d", head.Format, savedFormat)
	}
	var f savedFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, err
	}
	for i := range f.Policies {
		if f.Policies[i].Ref.Name == "" || f.Policies[i].InForce == Closed {
			return nil, errors.New("there is a policy in it without a name, or a closed one")
		}
	}
	return &f, nil
}
