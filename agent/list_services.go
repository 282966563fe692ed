package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/agent/feature"
	"myelin/cluster"
	"myelin/service"
	"myelin/service/nat"
	"myelin/service/stats"
)

// refuse refuses tables that are not there without Services, so that they
// don't look mistyped.
func (sv *services) refuse(table string) error {
	ours := []string{
		"services", "frontends", "backends", "health-checks", "service-addresses", "service-backends",
		"service-details", "service-flows", "service-stats", "api-services", "health-probes",
	}
	if sv.Config.Services() || !slices.Contains(ours, table) {
		return nil
	}
	return status.Error(codes.FailedPrecondition,
		"Services are off on this node: kubeProxyReplacement and socketLB.enabled are false")
}

// address is a frontend with its backends, as `myelin service list` shows it.
type address struct {
	ID       uint32       `json:"id"` // the Service's
	Frontend string       `json:"frontend"`
	Type     service.Type `json:"type"`
	Service  cluster.Key  `json:"service"`
	PortName string       `json:"portName,omitempty"`
	// Empty says why there is no backend. "reject": no node has one, and new flows are refused; "drop": other nodes
	// have some, and new flows are dropped.
	Empty    string          `json:"empty,omitempty"`
	Backends []addressTarget `json:"backends"`
}

// addressTarget is a backend that gets new flows.
type addressTarget struct {
	ID       uint32           `json:"id"`
	Address  netip.AddrPort   `json:"address"`
	Protocol service.Protocol `json:"-"`
	State    service.State    `json:"state"`
	Weight   uint16           `json:"weight"`
	Node     string           `json:"node,omitempty"`
}

// String is "10.0.1.2:8080/TCP (active)".
func (b addressTarget) String() string {
	at := service.L4Addr{AddrPort: b.Address, Protocol: b.Protocol}
	if b.Weight == service.DefaultWeight {
		return fmt.Sprintf("%s (%s)", at, b.State)
	}
	return fmt.Sprintf("%s (%s, weight %d)", at, b.State, b.Weight)
}

// TableHeader names the columns of TableRow.
func (*address) TableHeader() []string {
	return []string{"ID", "Frontend", "Service Type", "Service", "Port", "Backend"}
}

// TableRow is the row as text; of backends each has a line.
func (r *address) TableRow() []string {
	lines := make([]string, len(r.Backends))
	for i, b := range r.Backends {
		lines[i] = strconv.Itoa(i+1) + " => " + b.String()
	}
	if r.Empty != "" {
		lines = []string{r.none()}
	}
	return []string{
		strconv.FormatUint(uint64(r.ID), 10), r.Frontend, r.Type.String(), r.Service.String(), r.PortName,
		strings.Join(lines, "\n"),
	}
}

// WideHeader names the columns of WideRow.
func (*address) WideHeader() []string { return []string{"Backend ID", "Node", "Weight"} }

// WideRow has a line for each backend, as the last column of TableRow.
func (r *address) WideRow() []string {
	var ids, nodes, weights []string
	for _, b := range r.Backends {
		ids = append(ids, strconv.FormatUint(uint64(b.ID), 10))
		nodes = append(nodes, cmp.Or(b.Node, "-"))
		weights = append(weights, strconv.FormatUint(uint64(b.Weight), 10))
	}
	return []string{strings.Join(ids, "\n"), strings.Join(nodes, "\n"), strings.Join(weights, "\n")}
}

// none says what becomes of new flows where there is no backend; empty where there is one.
func (r *address) none() string {
	return map[string]string{"reject": "none: refused", "drop": "none on this node"}[r.Empty]
}

// addresses are the rows of a frontend. Where clients inside of the cluster
// have other backends than those outside, there is a row for each, and theirs
// ends in "/i".
func addresses(txn statedb.ReadTxn, backends statedb.Table[*service.Backend], f *service.Frontend) []*address {
	row := func(suffix string, scope service.Scope, refs []service.BackendRef) *address {
		r := &address{
			ID: f.ServiceID, Frontend: f.L4().String() + suffix, Type: f.Type, Service: f.Service, PortName: f.PortName,
			Backends: make([]addressTarget, 0, len(refs)),
		}
		for _, ref := range refs {
			t := addressTarget{ID: ref.ID, Protocol: f.Protocol, Weight: ref.Weight}
			if b, _, ok := backends.Get(txn, service.BackendByID(ref.ID)); ok {
				t.Address, t.State, t.Node = b.Address, b.State, b.Node
			}
			r.Backends = append(r.Backends, t)
		}
		switch {
		case len(refs) > 0:
		case f.Elsewhere&scope != 0:
			r.Empty = "drop"
		default:
			r.Empty = "reject"
		}
		return r
	}
	switch f.Scopes {
	case service.Internal:
		return []*address{row("", service.Internal, f.Internal)}
	case service.External:
		return []*address{row("", service.External, f.External)}
	}
	alike := slices.Equal(f.External, f.Internal) &&
		(f.Elsewhere == 0 || f.Elsewhere == service.Internal|service.External)
	list := []*address{row("", service.External, f.External)}
	if !alike {
		list = append(list, row("/i", service.Internal, f.Internal))
	}
	return list
}

// serviceAddresses are the rows of all frontends, sorted by the number of their
// Service.
func serviceAddresses(txn statedb.ReadTxn, t service.Tables) func(func(tableRow) bool) error {
	return func(yield func(tableRow) bool) error {
		frontends := rows(t.Frontends.All(txn))
		slices.SortFunc(frontends, func(a, b *service.Frontend) int {
			return cmp.Or(cmp.Compare(a.ServiceID, b.ServiceID), a.L4().Compare(b.L4()))
		})
		for _, f := range frontends {
			for _, r := range addresses(txn, t.Backends, f) {
				if !yield(r) {
					return nil
				}
			}
		}
		return nil
	}
}

// target is a backend, as `myelin backend list` shows it.
type target struct {
	*service.Backend
	// Health is what health checks of this node say; empty where none asks.
	Health string `json:"health,omitempty"`
}

// TableHeader names the columns of TableRow.
func (target) TableHeader() []string {
	return []string{"ID", "Address", "State", "Node", "Zone", "Weight", "Health", "Used by"}
}

// TableRow is the row as text. The weight is the largest one; of a Service that
// says another, it stands there.
func (t target) TableRow() []string {
	uses := make([]string, len(t.Uses))
	for i, u := range t.Uses {
		uses[i] = u.Service.String()
		if u.Weight != t.Weight {
			uses[i] += fmt.Sprintf("(%d)", u.Weight)
		}
	}
	return []string{
		strconv.FormatUint(uint64(t.ID), 10), t.L4().String(), t.State.String(), t.Node, t.Zone,
		strconv.Itoa(int(t.Weight)), t.Health, strings.Join(uses, " "),
	}
}

// serviceBackends are all backends, those that get no new flows too, sorted by
// number.
func (sv *services) serviceBackends(txn statedb.ReadTxn, t service.Tables) func(func(tableRow) bool) error {
	return func(yield func(tableRow) bool) error {
		list := rows(t.Backends.All(txn))
		slices.SortFunc(list, func(a, b *service.Backend) int { return cmp.Compare(a.ID, b.ID) })
		for _, b := range list {
			if !yield(target{b, sv.healthOf(txn, b.L4())}) {
				break
			}
		}
		return nil
	}
}

// lists are none if Services are off.
func (sv *services) lists() map[string]feature.List {
	if sv.services == nil {
		return nil
	}
	txn := sv.DB.ReadTxn()
	return map[string]feature.List{
		"service-addresses": {Header: (*address)(nil).TableHeader(), Each: serviceAddresses(txn, sv.services.Desired)},
		"service-backends":  {Header: target{}.TableHeader(), Each: sv.serviceBackends(txn, sv.services.Desired)},
		"service-details":   {Header: (*details)(nil).TableHeader(), Each: sv.serviceDetails(txn, sv.services.Desired)},
		"service-flows":     {Header: (*nat.Entry)(nil).TableHeader(), Each: sv.eachServiceFlow},
		"service-stats":     {Header: (*stats.Entry)(nil).TableHeader(), Each: sv.eachServiceStat},
	}
}

// eachServiceFlow calls yield for each flow that packets are translated for.
func (sv *services) eachServiceFlow(yield func(tableRow) bool) error {
	clock, err := sv.flows.Clock()
	if err != nil {
		return err
	}
	services := service.Names(sv.DB.ReadTxn(), sv.services.Desired)
	return nat.Entries(sv.Datapath, sv.names(), services, clock, func(t *nat.Entry) bool { return yield(t) })
}

// commands are those that show Services.
func (*services) commands() []feature.Command {
	return []feature.Command{
		{Name: "service", Short: "Manage Services", Views: []feature.View{
			{Name: "list", Short: "List the addresses of Services with the backends that get new flows",
				Table: "service-addresses", Multiline: true},
			{
				Name: "get", Short: "Show a Service's options, frontends, backends and problems",
				Table: "service-details", By: "Service", Arg: "NAMESPACE/NAME",
			},
			{Name: "flows", Short: "List the NAT entries of Services", Table: "service-flows"},
			{Name: "stats", Short: "List packets, bytes and new flows by Service and backend",
				Table: "service-stats"},
		}},
		{Name: "backend", Short: "Inspect Service backends", Views: []feature.View{
			{Name: "list", Short: "List all backends with their states", Table: "service-backends"},
		}},
	}
}
