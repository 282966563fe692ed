package policy

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"myelin/cluster"
	"myelin/table/ledger"
)

// ruleKey is a rule's place and all that it says, as text.
type ruleKey string

// compiler makes sets of rules. It knows nothing of tables and maps: it is told
// what changes, and flush says what the kernel must learn.
type compiler struct {
	config   Config
	peers    *peerIDs
	space    *space
	subjects *selectors[*policySpec, *subject]
	rules    *ledger.Numbers[ledgerKey]
	objects  map[Ref]*object
	targets  map[uint16]*target
	known    map[string]*subject // by labels
	sets     map[string]*set
	named    map[portName]*namedPort
	pods     map[cluster.Key]podFacts
	nodes    map[string]*nodeFacts
	groups   map[string]groupFacts
	behind   map[string]serviceFacts // by "namespace/name"
	last     uint32                  // number of a set or class
	// altered are rules whose numbers came or went, or whose place did.
	altered map[uint32]*rule
	// asking are the objects that speak of Services.
	asking map[Ref]struct{}

	dirty   map[*subject]struct{}
	leaving []*target // endpoints that are no more
	fresh   []*set    // to be built
	waiting map[*target]struct{}
}

// object is a policy, as its rules are compiled.
type object struct {
	specs []*policySpec
	given []Spec
	rules map[ruleKey]*rule
}

// policySpec is a Spec and whom it is for.
type policySpec struct {
	*Spec
	key    string
	rules  []*rule
	chosen *selection[*policySpec, *subject]
}

// subject is a label set that endpoints of this node have.
type subject struct {
	labeled[*policySpec, *subject]
	key     string
	targets map[*target]struct{}
}

// target is an endpoint.
type target struct {
	slot    uint16
	host    bool // the node itself
	audit   bool
	ports   []binding
	subject *subject
	sets    [2][2]*set // by direction and family
	next    [2][2]*set // what it gets when their lists are known, if it waits
	gone    bool
	unknown bool // its labels aren't known
	fresh   bool // it never had sets, nor was decided to have none
	// For whoever asks: the pod's name, and the container's interface.
	name, attachment string
}

func newCompiler(c Config, peers, rules *ledger.Numbers[ledgerKey]) *compiler {
	ids := newPeerIDs(peers)
	out := &compiler{
		config: c, peers: ids, space: newSpace(ids), subjects: newSelectors[*policySpec, *subject](), rules: rules, objects: map[Ref]*object{},
		targets: map[uint16]*target{}, known: map[string]*subject{}, sets: map[string]*set{}, named: map[portName]*namedPort{},
		pods: map[cluster.Key]podFacts{}, nodes: map[string]*nodeFacts{}, groups: map[string]groupFacts{}, behind: map[string]serviceFacts{},
		asking: map[Ref]struct{}{}, altered: map[uint32]*rule{}, dirty: map[*subject]struct{}{}, waiting: map[*target]struct{}{},
	}
	out.space.nodes = c.CIDRNodes
	out.space.special(podCIDRs, "pod-cidrs")
	out.space.special(apiServers, "api-servers")
	all := out.space.special(allIPv4, "ipv4")
	out.space.fillSet(all, []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)}, nil)
	return out
}

// next numbers a set or a class. 0 is none.
func (c *compiler) next() uint32 {
	if c.last++; c.last == 0 {
		c.last++
	}
	return c.last
}

// setPolicy takes an object's specs; nil: there is no such object any more.
// What is as it was costs nothing.
func (c *compiler) setPolicy(ref Ref, specs []Spec) {
	old := c.objects[ref]
	if old == nil {
		old = &object{}
	}
	next := &object{given: specs, rules: map[ruleKey]*rule{}}
	delete(c.asking, ref)
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
		s.chosen = c.subjects.use(chooser(s.Spec), s)
		c.touch(s)
	}
	for _, s := range before {
		c.touch(s)
		c.subjects.release(s.chosen, s)
	}
	for key, r := range old.rules {
		if next.rules[key] != r {
			c.rules.Release(ledgerKeyOf(r.key))
			if _, ok := c.altered[r.id]; !ok {
				c.altered[r.id] = nil
			}
		}
	}
	enforced := c.enforcing()
	c.objects[ref] = next
	if specs == nil {
		delete(c.objects, ref)
	}
	if c.enforcing() == enforced {
		return
	}
	for _, t := range c.targets {
		if t.unknown {
			c.dirty[t.subject] = struct{}{}
		}
	}
}

// enforcing reports whether labels matter to anybody: only then an endpoint whose labels aren't known is denied what no policy of
// reserved:init allows.
func (c *compiler) enforcing() bool { return c.config.Mode == ModeAlways || len(c.objects) > 0 }

// chooser selects the endpoints that a spec is for: pods or nodes, never both.
func chooser(s *Spec) Selector {
	op := NotExists
	if s.Nodes {
		op = Exists
	}
	return slices.Concat(s.Subject, Selector{{Source: "reserved", Key: "host", Op: op}})
}

func (c *compiler) touch(s *policySpec) {
	for t := range s.chosen.things {
		c.dirty[t.thing] = struct{}{}
	}
}

// newSpec makes the rules of a spec, or finds them among those of the object
// before. place orders the specs of an object.
func (c *compiler) newSpec(spec *Spec, place int, old, next *object) *policySpec {
	s := &policySpec{Spec: spec}
	var key strings.Builder
	fmt.Fprintf(&key, "%v %t %v %d %d %v\x03", spec.Isolates, spec.Nodes, chooser(spec).text(), spec.Tier, spec.Priority, spec.Required)
	for i := range spec.Rules {
		from := &spec.Rules[i]
		if slices.ContainsFunc(from.Peers, func(p Peer) bool { return p.Service != nil }) {
			c.asking[spec.Ref] = struct{}{}
		}
		peers := newPeers(from.Peers, spec.Ref.String()+" "+from.Origin.Path, c.finder(from.Action))
		rk := keyOf(spec, from, &peers)
		for next.rules[rk] != nil {
			rk += "+" // the same thing said twice
		}
		r := old.rules[rk]
		if r == nil {
			r = &rule{key: rk, place: place<<16 | i, name: spec.Ref.Key.String() + " " + spec.Ref.Kind, sets: map[*set]struct{}{}}
			r.ports, r.names = portsOf(from.Ports)
		}
		if r.id == 0 {
			r.id = c.rules.Get(ledgerKeyOf(rk))
		}
		if r.Rule == nil || r.Origin != from.Origin {
			c.altered[r.id] = r
		}
		r.Rule, r.spec, r.peers = from, spec, peers
		c.refill(r)
		next.rules[rk] = r
		s.rules = append(s.rules, r)
		key.WriteString(string(rk) + "\x03")
	}
	s.key = key.String()
	return s
}

// keyOf is the place of a rule and what it says.
func keyOf(spec *Spec, r *Rule, peers *peerSpec) ruleKey {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n%d %d %d %d %v %v", spec.Ref, r.Origin.Path, spec.Tier, spec.Priority, r.Direction, r.Action, peers.any, r.Ports == nil)
	for _, p := range r.Ports {
		fmt.Fprintf(&b, " %d/%d-%d/%s", p.Proto, p.First, p.Last, p.Name)
	}
	for _, s := range peers.selectors {
		b.WriteString("\x04" + s.text())
	}
	for _, a := range peers.addresses {
		b.WriteString("\x05" + a.source.key + "\x06" + a.required.text())
	}
	return ruleKey(b.String())
}

// changedRules are the rules that have a number since it was called last, or,
// as nil, none any more.
func (c *compiler) changedRules() map[uint32]*rule {
	out := c.altered
	c.altered = map[uint32]*rule{}
	return out
}

// ledgerKeyOf is a rule's key, made short.
func ledgerKeyOf(k ruleKey) ledgerKey {
	place, _, _ := strings.Cut(string(k), "\n")
	return ledgerKey(place + " " + hash128(string(k)))
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

// setTarget learns of an endpoint of this node: what labels it has, and which
// ports its containers.
func (c *compiler) setTarget(slot uint16, labels []string, ports []binding, host, audit bool) {
	t := c.targets[slot]
	if t == nil {
		t = &target{slot: slot, fresh: true}
		c.targets[slot] = t
	}
	key := strings.Join(labels, "\n")
	if t.subject != nil && t.subject.key == key && slices.Equal(t.ports, ports) && t.host == host && t.audit == audit {
		return
	}
	s := c.known[key]
	if s == nil {
		s = &subject{key: key, targets: map[*target]struct{}{}}
		s.thing, s.labels = s, parseLabels(labels)
		c.known[key] = s
		c.subjects.add(&s.labeled)
	}
	if t.subject != s {
		c.leave(t)
	}
	t.subject, t.ports, t.host, t.audit = s, ports, host, audit
	s.targets[t] = struct{}{}
	c.dirty[s] = struct{}{}
}

func (c *compiler) leave(t *target) {
	if s := t.subject; s != nil {
		delete(s.targets, t)
		c.dirty[s] = struct{}{}
	}
}

// removeTarget forgets an endpoint.
func (c *compiler) removeTarget(slot uint16) {
	if t := c.targets[slot]; t != nil {
		t.gone = true
		c.leaving = append(c.leaving, t)
		c.leave(t)
		delete(c.targets, slot)
	}
}

// setAddress says whose an address of the cluster is; 0: nobody's.
func (c *compiler) setAddress(a netip.Addr, id uint32) {
	var b *base
	if id != 0 {
		b = c.peers.base(id)
	}
	c.space.own(a, b)
}

// inOrder are all targets, for what must not depend on chance.
func (c *compiler) inOrder() []*target {
	return slices.SortedFunc(maps.Values(c.targets), func(a, b *target) int { return int(a.slot) - int(b.slot) })
}
