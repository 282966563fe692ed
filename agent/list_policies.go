package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/agent/feature"
	"myelin/endpoint"
	"myelin/flow"
	"myelin/policy"
	"myelin/policy/explain"
	"myelin/policy/identity"
)

// policyRowsTable begins the name of the table of an endpoint's rows.
const policyRowsTable = "policy-rows"

// refuse refuses tables that are not there without policies, so that they
// don't look mistyped.
func (pl *policies) refuse(table string) error {
	name, _, _ := strings.Cut(table, " ")
	if pl.engine != nil || !slices.Contains([]string{policyRowsTable, "policy-uses", "policy-rules",
		"endpoint-policies", "prefilter"}, name) {
		return nil
	}
	return status.Error(codes.FailedPrecondition,
		"policies are not enforced on this node: policyEnforcementMode is never, or loadBalancer.standalone is true")
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
		peer = fmt.Sprintf("(%d) %s", l.Identity, strings.Join(slices.DeleteFunc(slices.Clone(l.Labels),
			func(text string) bool {
				return strings.HasPrefix(text, "k8s:"+identity.NamespaceLabelsKey)
			}), ","))
	}
	return []string{
		l.Direction.String(), cmp.Or(l.Family, "both"), peer, l.Port, l.Action, l.Place, strconv.FormatUint(l.Hits, 10),
		ago(l.LastHit),
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
func (pl *policies) policyRows(of string) (*feature.List, error) {
	e, err := pl.findEndpoint(of)
	if err != nil {
		return nil, err
	}
	return &feature.List{Header: (*policyLine)(nil).TableHeader(), Each: func(yield func(tableRow) bool) error {
		lines, err := pl.explainer().Lines(e)
		if err != nil {
			return err
		}
		clock, err := pl.flows.Clock()
		if err != nil {
			return err
		}
		for _, l := range lines {
			row := &policyLine{Line: l, Port: policy.Port{Proto: l.Proto, First: l.First, Last: l.Last}.String(),
				LastHit: sinceHit(clock, l.LastTick)}
			if row.Place = pl.ruleText(l.Rule); l.Rule == 0 && l.Action != "allow" {
				row.Place = "isolated by " + strings.Join(pl.explainer().Isolating(e, l.Direction), ", ")
			}
			if !yield(row) {
				break
			}
		}
		return nil
	}}, nil
}

// ruleText is a rule's object and place; empty for no rule's number.
func (pl *policies) ruleText(number uint32) string { return pl.names().Rule(number) }

// findEndpoint finds an endpoint of this node by its ID, as "host", or by the
// name of its pod, with or without the namespace.
func (pl *policies) findEndpoint(name string) (uint16, error) {
	txn := pl.DB.ReadTxn()
	if name == "host" {
		return endpoint.HostID, nil
	}
	if n, err := strconv.ParseUint(name, 10, 16); err == nil {
		return uint16(n), nil
	}
	var found []string
	var id uint16
	for e := range pl.endpoints.table.All(txn) {
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
	for p := range pl.Cluster.Pods.All(txn) {
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
		strconv.FormatUint(uint64(u.ID), 10), u.Direction.String(), u.Action.String(), strconv.Itoa(u.Endpoints),
		strconv.FormatUint(u.Hits, 10), ago(u.LastHit), u.State, u.Name(),
	}
}

func (pl *policies) lists() map[string]feature.List {
	drops := feature.List{Header: (*policyDenial)(nil).TableHeader(), Each: pl.eachDenial}
	if pl.engine == nil {
		return map[string]feature.List{"policy-drops": drops}
	}
	uses := func(yield func(tableRow) bool) error {
		clock, err := pl.flows.Clock()
		if err != nil {
			return err
		}
		for _, u := range pl.explainer().Uses() {
			if !yield(&policyUse{u, sinceHit(clock, u.LastTick)}) {
				break
			}
		}
		return nil
	}
	return map[string]feature.List{
		"policy-uses":  {Header: (*policyUse)(nil).TableHeader(), Each: uses},
		"policy-drops": drops,
	}
}

// commands are those that show policies.
func (*policies) commands() []feature.Command {
	return []feature.Command{
		{Name: "policy", Short: "Manage network policies", Views: []feature.View{
			{Name: "list", Short: "List policies, and why one is refused", Table: "policies"},
			{Name: "get", Short: "Show the policy entries of an endpoint in the kernel, with rule and hits",
				Table: "policy-rows", By: "ENDPOINT|POD", Prefix: true},
			{Name: "rules", Short: "List rules with their hits, and those that decide nothing",
				Table: "policy-uses"},
			{Name: "secrets", Short: "List the Secrets that policies name, and why one cannot be used",
				Table: "policy-secrets"},
			{Name: "drops", Short: "List denied packets by rule and endpoint", Table: "policy-drops"},
		}},
		{Name: "cidrgroup", Short: "Inspect CiliumCIDRGroups", Views: []feature.View{
			{Name: "list", Short: "List CiliumCIDRGroups, and why one is refused", Table: "cidr-groups"},
		}},
	}
}
