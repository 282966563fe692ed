package agent

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"myelin/agent/feature"
	"myelin/endpoint"
	"myelin/policy"
	"myelin/policy/identity"
)

// endpointDetails is an endpoint with its identity and its policy enforcement, as `myelin endpoint list` shows it.
type endpointDetails struct {
	endpoint *endpoint.Endpoint
	more     endpointPolicy
}

// endpointPolicy is what other tables have of an endpoint.
type endpointPolicy struct {
	Identity uint32   `json:"identity"`
	Labels   []string `json:"labels"`
	Ingress  string   `json:"policyIngress"`
	Egress   string   `json:"policyEgress"`
}

// Policy enforcement of a direction, in the words of `cilium-dbg endpoint list`.
const (
	enforcementEnabled  = "Enabled"
	enforcementDisabled = "Disabled"
	enforcementAudit    = "Disabled (Audit)" // denied flows are only reported
)

// MarshalJSON adds the fields to those of the endpoint.
func (d *endpointDetails) MarshalJSON() ([]byte, error) {
	row, err := json.Marshal(d.endpoint)
	if err != nil {
		return nil, err
	}
	more, err := json.Marshal(d.more)
	if err != nil {
		return nil, err
	}
	return slices.Concat(row[:len(row)-1], []byte(","), more[1:]), nil
}

// TableHeader names the columns of TableRow.
func (*endpointDetails) TableHeader() []string {
	return []string{
		"ID", "Pod", "Policy (ingress)", "Policy (egress)", "Identity", "Labels", "IPv4", "IPv6", "Link", "MAC",
		"State", "Status",
	}
}

// TableRow is the row as text; labels have a line each, without those of the namespace.
func (d *endpointDetails) TableRow() []string {
	row := d.endpoint.TableRow() // ID, Pod, IPv4, IPv6, Link, Index, MAC, State, Status
	labels := slices.DeleteFunc(slices.Clone(d.more.Labels), func(text string) bool {
		return strings.HasPrefix(text, "k8s:"+identity.NamespaceLabelsKey)
	})
	return slices.Concat(
		row[:2],
		[]string{
			d.more.Ingress, d.more.Egress, strconv.FormatUint(uint64(d.more.Identity), 10), strings.Join(labels, "\n"),
		},
		row[2:5], row[6:],
	)
}

// WideHeader names the columns of WideRow.
func (d *endpointDetails) WideHeader() []string { return d.endpoint.WideHeader() }

// WideRow has what -o wide shows beside TableRow.
func (d *endpointDetails) WideRow() []string { return d.endpoint.WideRow() }

// eachEndpoint calls yield for each endpoint of this node, by ID.
func (ep *endpoints) eachEndpoint(yield func(tableRow) bool) error {
	txn := ep.DB.ReadTxn()
	list := rows(ep.table.All(txn))
	slices.SortFunc(list, func(a, b *endpoint.Endpoint) int { return cmp.Compare(a.ID, b.ID) })
	for _, e := range list {
		if !yield(&endpointDetails{e, ep.policyOf(txn, e)}) {
			break
		}
	}
	return nil
}

func (ep *endpoints) policyOf(txn statedb.ReadTxn, e *endpoint.Endpoint) endpointPolicy {
	p := endpointPolicy{Ingress: enforcementDisabled, Egress: enforcementDisabled}
	if ids := ep.identities.all; ids != nil {
		id, ok := ids.Pod(txn, e.Namespace, e.Pod)
		if !ok {
			id, _, ok = ids.Identities().Get(txn, identity.ByID(identity.Init))
		}
		if ok {
			p.Identity, p.Labels = id.ID, id.Labels
		}
	}
	if ep.policies.engine == nil {
		return p
	}
	r, _, ok := ep.policies.engine.Realised.Get(txn, policy.RealisedBySlot(e.ID))
	if !ok {
		p.Ingress, p.Egress = "", "" // not known yet
		return p
	}
	for dir, text := range map[policy.Direction]*string{policy.Ingress: &p.Ingress, policy.Egress: &p.Egress} {
		switch {
		case r.Enforced[dir] && r.Audit:
			*text = enforcementAudit
		case r.Enforced[dir]:
			*text = enforcementEnabled
		}
	}
	return p
}

func (ep *endpoints) lists() map[string]feature.List {
	return map[string]feature.List{"endpoint-details": {Header: (*endpointDetails)(nil).TableHeader(),
		Each: ep.eachEndpoint}}
}

// commands are those that show endpoints.
func (*endpoints) commands() []feature.Command {
	return []feature.Command{
		{Name: "endpoint", Short: "Inspect the endpoints of this node", Views: []feature.View{
			{
				Name: "list", Short: "List endpoints with identity, labels and policy enforcement",
				Table: "endpoint-details", Multiline: true,
			},
			{Name: "get", Short: "Show the endpoint with an ID", Table: "endpoint-details", By: "ID"},
		}},
	}
}
