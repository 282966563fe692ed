package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/endpoint"
	"myelin/flow"
	"myelin/identity"
	"myelin/policy"
	"myelin/policy/explain"
)

// policyRowsTable begins the name of the table of an endpoint's rows.
const policyRowsTable = "policy-rows"

// policyOff refuses tables that are not there without policies, so that they
// don't look mistyped.
func (a *Agent) policyOff(table string) error {
	name, _, _ := strings.Cut(table, " ")
	if a.engine != nil || !slices.Contains([]string{policyRowsTable, "policy-uses", "policy-rules", "endpoint-policies", "prefilter"}, name) {
		return nil
	}
	return status.Error(codes.FailedPrecondition, "policies are not enforced on this node: policyEnforcementMode is never, or loadBalancer.standalone is true")
}

// policyLine is a row of the kernel, as `myelin policy get` shows it.
type policyLine struct {
	explain.Line
	// Port is what the row covers, Place the rule, or what isolates where none
	// decides.
	Port  string `json:"port"`
	Place string `json:"place,omitempty"`
	// LastHit is seconds since the row decided about a flow; null: it never did.
	LastHit *flow.Seconds `json:"lastHitSeconds"`
}

// TableHeader names the columns of TableRow.
func (*policyLine) TableHeader() []string {
	return []string{"Direction", "Family", "Peer", "Port", "Action", "Rule", "Hits", "Last hit"}
}

// TableRow is the row as text.
func (l *policyLine) TableRow() []string {
	peer := "everybody else"
	if l.Identity != 0 {
		peer = fmt.Sprintf("(%d) %s", l.Identity, strings.Join(slices.DeleteFunc(slices.Clone(l.Labels), func(text string) bool {
			return strings.HasPrefix(text, "k8s:"+identity.NamespaceLabelsKey)
		}), ","))
	}
	return []string{
		l.Direction.String(), cmp.Or(l.Family, "both"), peer, l.Port, l.Action, l.Place, strconv.FormatUint(l.Hits, 10), ago(l.LastHit),
	}
}

// ago is "never", or how long ago something was.
func ago(since *flow.Seconds) string {
	if since == nil {
		return "never"
	}
	return since.String() + " ago"
}

// sinceHit is how long ago a row was hit; nil: never.
func sinceHit(clock flow.Clock, tick uint64) *flow.Seconds {
	if tick == 0 {
		return nil
	}
	s := flow.Seconds(clock.Age(tick))
	return &s
}

// policyRows is the table of an endpoint's rows: by its ID, "host", or its pod.
func (a *Agent) policyRows(of string) (*view, error) {
	e, err := a.findEndpoint(of)
	if err != nil {
		return nil, err
	}
	return &view{(*policyLine)(nil).TableHeader(), func(yield func(tableRow) bool) error {
		lines, err := a.explainer().Lines(e)
		if err != nil {
			return err
		}
		clock, err := a.clock()
		if err != nil {
			return err
		}
		for _, l := range lines {
			row := &policyLine{Line: l, Port: policy.Port{Proto: l.Proto, First: l.First, Last: l.Last}.String(), LastHit: sinceHit(clock, l.LastTick)}
			if row.Place = a.ruleText(l.Rule); l.Rule == 0 && l.Action != "allow" {
				row.Place = "isolated by " + strings.Join(a.explainer().Isolating(e, l.Direction), ", ")
			}
			if !yield(row) {
				break
			}
		}
		return nil
	}}, nil
}

// ruleText is a rule's object and place; empty for no rule's number.
func (a *Agent) ruleText(number uint32) string { return names{agent: a}.Rule(number) }

// findEndpoint finds an endpoint of this node by its ID, as "host", or by the
// name of its pod, with or without the namespace.
func (a *Agent) findEndpoint(name string) (uint16, error) {
	txn := a.db.ReadTxn()
	if name == "host" {
		return endpoint.HostID, nil
	}
	if n, err := strconv.ParseUint(name, 10, 16); err == nil {
		return uint16(n), nil
	}
	var found []string
	var id uint16
	for e := range a.endpoints.All(txn) {
		if e.PodName() == name || e.Pod == name && e.Pod != "" {
			found, id = append(found, e.PodName()), e.ID
		}
	}
	if len(found) == 1 {
		return id, nil
	}
	if len(found) > 1 {
		return 0, status.Errorf(codes.InvalidArgument, "there are pods %s: say which", strings.Join(found, ", "))
	}
	for p := range a.cluster.Pods.All(txn) {
		if name == p.Key().String() || name == p.Name {
			return 0, status.Errorf(codes.NotFound, "pod %s is on node %s: ask there", p.Key(), p.NodeName)
		}
	}
	return 0, status.Errorf(codes.NotFound, "there is no endpoint %s: want an ID, host, or NAMESPACE/POD", name)
}

// policyUse is a rule and what it does here, as `myelin policy rules` shows it.
type policyUse struct {
	*explain.Use
	// LastHit is seconds since it decided about a flow; null: it never did.
	LastHit *flow.Seconds `json:"lastHitSeconds"`
}

// TableHeader names the columns of TableRow.
func (*policyUse) TableHeader() []string {
	return []string{"ID", "Direction", "Action", "Endpoints", "Hits", "Last hit", "State", "Rule"}
}

// TableRow is the row as text.
func (u *policyUse) TableRow() []string {
	return []string{
		strconv.FormatUint(uint64(u.ID), 10), u.Direction.String(), u.Action.String(), strconv.Itoa(u.Endpoints), strconv.FormatUint(u.Hits, 10),
		ago(u.LastHit), u.State, u.Origin.String(),
	}
}

// policyViews are none where policies are off.
func (a *Agent) policyViews() map[string]view {
	if a.engine == nil {
		return nil
	}
	return map[string]view{"policy-uses": {(*policyUse)(nil).TableHeader(), func(yield func(tableRow) bool) error {
		clock, err := a.clock()
		if err != nil {
			return err
		}
		for _, u := range a.explainer().Uses() {
			if !yield(&policyUse{u, sinceHit(clock, u.LastTick)}) {
				break
			}
		}
		return nil
	}}}
}
