// Package compile turns policies into the entries of the kernel's maps: rules of objects into sets of verdicts, and
// addresses into identities. It neither reads tables nor writes maps.
package compile

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"myelin/cluster"
	"myelin/internal/table/ledger"
	"myelin/policy"
)

// ruleKey is a rule's place and all that it says, as text.
type ruleKey string

// Compiler makes sets of rules. It knows nothing of tables and maps: it is told
// what changes, and flush says what the kernel must learn.
type Compiler struct {
	Config policy.Config
	// Shadow: there is no kernel, so that what only looks at rules may number those of the proxy.
	Shadow           bool
	peers            *identities
	space            *space
	subjects         *selectors[*policySpec, *subject]
	rules            *ledger.Numbers[LedgerKey]
	objects          map[policy.Ref]*object
	endpoints        map[uint16]*Endpoint
	subjectsByLabels map[string]*subject // by labels
	sets             map[string]*Set
	named            map[portName]*namedPort
	pods             map[cluster.Key]podFacts
	nodes            map[string]*NodeFacts
	groups           map[string]GroupFacts
	services         map[string]ServiceFacts // by "namespace/name"
	last             uint32                  // number of a set or class
	proxied          proxiedNumbers
	selectors        map[uint32]*addressSet // those of names, by number
	// changed are rules whose number or origin changed; nil: the rule is gone.
	changed map[uint32]*policy.RuleRow
	// withServices are the objects that have Service peers.
	withServices map[policy.Ref]struct{}

	dirty   map[*subject]struct{}
	removed []*Endpoint // endpoints that are no more
	fresh   []*Set      // to be built
	waiting map[*Endpoint]struct{}
}

// object is a policy, as its rules are compiled.
type object struct {
	specs      []*policySpec
	specsGiven []policy.Spec
	rules      map[ruleKey]*rule
}

// policySpec is a Spec and the endpoints that it selects.
type policySpec struct {
	*policy.Spec
	key       string
	rules     []*rule
	selection *selection[*policySpec, *subject]
}

// subject is a label set that endpoints of this node have.
type subject struct {
	labeled[*policySpec, *subject]
	key     string
	targets map[*Endpoint]struct{}
}

// Endpoint is an endpoint.
type Endpoint struct {
	Slot    uint16
	host    bool // the node itself
	Audit   bool
	Ports   []PortBinding
	subject *subject
	Sets    [2][2]*Set // by direction and family
	next    [2][2]*Set // what it gets when their lists are known, if it waits
	Gone    bool
	Unknown bool // its labels aren't known
	New     bool // it never had sets, nor was decided to have none
	// For tables and explanations: the pod's name, and the container's interface.
	Name, Attachment string
}

func New(c policy.Config, peers, rules *ledger.Numbers[LedgerKey]) *Compiler {
	ids := newIdentities(peers)
	out := &Compiler{
		Config: c, peers: ids, space: newSpace(ids), subjects: newSelectors[*policySpec, *subject](), rules: rules,
		objects:   map[policy.Ref]*object{},
		endpoints: map[uint16]*Endpoint{}, subjectsByLabels: map[string]*subject{}, sets: map[string]*Set{},
		named: map[portName]*namedPort{},
		pods:  map[cluster.Key]podFacts{}, nodes: map[string]*NodeFacts{}, groups: map[string]GroupFacts{},
		services:     map[string]ServiceFacts{},
		withServices: map[policy.Ref]struct{}{}, changed: map[uint32]*policy.RuleRow{}, dirty: map[*subject]struct{}{},
		waiting: map[*Endpoint]struct{}{}, selectors: map[uint32]*addressSet{},
		proxied: proxiedNumbers{map[uint32]*proxied{}, map[LedgerKey]*proxied{}},
	}
	out.space.nodes = c.CIDRNodes
	out.space.special(podCIDRs, "pod-cidrs")
	out.space.special(apiServers, "api-servers")
	all := out.space.special(allIPv4, "ipv4")
	out.space.fillSet(all, []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}, nil)
	return out
}

// next numbers a set or a class. 0 is none.
func (c *Compiler) next() uint32 {
	if c.last++; c.last == 0 {
		c.last++
	}
	return c.last
}

// SetPolicy takes an object's specs; nil: there is no such object any more.
// What is as it was costs nothing.
func (c *Compiler) SetPolicy(ref policy.Ref, specs []policy.Spec) {
	if !c.Config.Proxy {
		specs = policy.WithoutProxy(specs, policy.NoProxy)
	}
	old := c.objects[ref]
	if old == nil {
		old = &object{}
	}
	next := &object{specsGiven: specs, rules: map[ruleKey]*rule{}}
	delete(c.withServices, ref)
	before := map[string]*policySpec{}
	for _, s := range old.specs {
		before[s.key] = s
	}
	for i := range specs {
		s := c.newSpec(&specs[i], i, old, next)
		if same := before[s.key]; same != nil {
			delete(before, s.key)
			same.Spec = s.Spec
			next.specs = append(next.specs, same)
			continue
		}
		next.specs = append(next.specs, s)
		s.selection = c.subjects.use(subjectSelector(s.Spec), s)
		c.markSubjects(s)
	}
	for _, s := range before {
		c.markSubjects(s)
		c.subjects.release(s.selection, s)
	}
	for key, r := range old.rules {
		if next.rules[key] != r {
			c.rules.Release(ledgerKeyOf(r.key))
			if _, ok := c.changed[r.id]; !ok {
				c.changed[r.id] = nil
			}
		}
	}
	enforced := c.Enforcing()
	c.objects[ref] = next
	if specs == nil {
		delete(c.objects, ref)
	}
	if c.Enforcing() == enforced {
		return
	}
	for _, t := range c.endpoints {
		if t.Unknown {
			c.dirty[t.subject] = struct{}{}
		}
	}
}

// Enforcing reports whether labels matter: only then an endpoint whose labels aren't known is denied what no
// policy of reserved:init allows.
func (c *Compiler) Enforcing() bool { return c.Config.Mode == policy.ModeAlways || len(c.objects) > 0 }

// subjectSelector selects the endpoints that a spec is for: pods or nodes, never both.
func subjectSelector(s *policy.Spec) policy.Selector {
	op := policy.NotExists
	if s.Nodes {
		op = policy.Exists
	}
	return slices.Concat(s.Subject, policy.Selector{{Source: "reserved", Key: "host", Op: op}})
}

func (c *Compiler) markSubjects(s *policySpec) {
	for t := range s.selection.things {
		c.dirty[t.thing] = struct{}{}
	}
}

// newSpec makes the rules of a spec, or finds them among those of the object
// before. place orders the specs of an object.
func (c *Compiler) newSpec(spec *policy.Spec, place int, old, next *object) *policySpec {
	s := &policySpec{Spec: spec}
	var key strings.Builder
	fmt.Fprintf(&key, "%v %t %v %d %d %v\x03", spec.Isolates, spec.Nodes, subjectSelector(spec).Key(), spec.Tier,
		spec.Priority, spec.Required)
	for i := range spec.Rules {
		from := &spec.Rules[i]
		if slices.ContainsFunc(from.Peers, func(p policy.Peer) bool { return p.Service != nil }) {
			c.withServices[spec.Ref] = struct{}{}
		}
		peers := newPeers(from.Peers, spec.Ref.String()+" "+from.Origin.Path, c.finder(from.Action))
		rk := keyOf(spec, from, &peers)
		for next.rules[rk] != nil {
			rk += "+" // the same thing said twice
		}
		r := old.rules[rk]
		if r == nil {
			r = &rule{key: rk, place: place<<16 | i, name: spec.Ref.Key.String() + " " + spec.Ref.Kind,
				sets: map[*Set]struct{}{}}
			r.ports, r.names = portsOf(from.Ports)
		}
		if r.id == 0 {
			r.id = c.rules.Get(ledgerKeyOf(rk))
		}
		changed := r.Rule == nil || r.Origin != from.Origin
		if r.Rule, r.spec, r.peers = from, spec, peers; changed {
			c.changed[r.id] = r.Row()
			c.renameProxied(r)
		}
		c.refill(r)
		next.rules[rk] = r
		s.rules = append(s.rules, r)
		key.WriteString(string(rk) + "\x03")
	}
	s.key = key.String()
	return s
}

// keyOf is the place of a rule and what it says.
func keyOf(spec *policy.Spec, r *policy.Rule, peers *peerSpec) ruleKey {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n%d %d %d %d %v %v", spec.Ref, r.Origin.Path, spec.Tier, spec.Priority, r.Direction,
		r.Action, peers.any, r.Ports == nil)
	for _, p := range r.Ports {
		fmt.Fprintf(&b, " %d/%d-%d/%s", p.Proto, p.First, p.Last, p.Name)
	}
	for _, s := range peers.selectors {
		b.WriteString("\x04" + s.Key())
	}
	for _, a := range peers.addresses {
		b.WriteString("\x05" + a.source.key + "\x06" + a.required.Key())
	}
	if r.L7 != nil {
		text, _ := json.Marshal(r.L7) // of strings alone: never fails
		b.WriteString("\x08" + string(text))
	}
	return ruleKey(b.String())
}

// ChangedRules are the rules that have a number since it was called last, or,
// as nil, none any more.
func (c *Compiler) ChangedRules() map[uint32]*policy.RuleRow {
	out := c.changed
	c.changed = map[uint32]*policy.RuleRow{}
	return out
}

// ledgerKeyOf is a rule's key, made short.
func ledgerKeyOf(k ruleKey) LedgerKey {
	place, _, _ := strings.Cut(string(k), "\n")
	return LedgerKey(place + " " + hash128(string(k)))
}

func hash128(text string) string {
	var b []byte
	for seed := range uint64(2) {
		d := xxhash.NewWithSeed(seed)
		d.WriteString(text) // never fails
		b = binary.BigEndian.AppendUint64(b, d.Sum64())
	}
	return fmt.Sprintf("%x", b)
}

// SetEndpoint learns of an endpoint of this node: what labels it has, and which
// ports its containers.
func (c *Compiler) SetEndpoint(slot uint16, labels []string, ports []PortBinding, host, audit bool) {
	t := c.endpoints[slot]
	if t == nil {
		t = &Endpoint{Slot: slot, New: true}
		c.endpoints[slot] = t
	}
	key := strings.Join(labels, "\n")
	if t.subject != nil && t.subject.key == key && slices.Equal(t.Ports, ports) && t.host == host && t.Audit == audit {
		return
	}
	s := c.subjectsByLabels[key]
	if s == nil {
		s = &subject{key: key, targets: map[*Endpoint]struct{}{}}
		s.thing, s.labels = s, policy.ParseLabels(labels)
		c.subjectsByLabels[key] = s
		c.subjects.add(&s.labeled)
	}
	if t.subject != s {
		c.leave(t)
	}
	t.subject, t.Ports, t.host, t.Audit = s, ports, host, audit
	s.targets[t] = struct{}{}
	c.dirty[s] = struct{}{}
}

func (c *Compiler) leave(t *Endpoint) {
	if s := t.subject; s != nil {
		delete(s.targets, t)
		c.dirty[s] = struct{}{}
	}
}

// RemoveEndpoint forgets an endpoint.
func (c *Compiler) RemoveEndpoint(slot uint16) {
	if t := c.endpoints[slot]; t != nil {
		t.Gone = true
		c.removed = append(c.removed, t)
		c.leave(t)
		delete(c.endpoints, slot)
	}
}

// SetAddress sets the identity of an address of the cluster; 0: it has none any more.
func (c *Compiler) SetAddress(a netip.Addr, id uint32) {
	var b *base
	if id != 0 {
		b = c.peers.base(id)
	}
	c.space.setOwner(a, b)
}

// Endpoints are all targets, for what must not depend on chance.
func (c *Compiler) Endpoints() []*Endpoint {
	return slices.SortedFunc(maps.Values(c.endpoints), func(a, b *Endpoint) int { return int(a.Slot) - int(b.Slot) })
}
