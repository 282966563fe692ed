package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/service"
)

// details is a Service with all that it has on this node, as `myelin service get` shows it.
type details struct {
	*service.Service
	Frontends []frontendDetails `json:"frontends"`
	Backends  []target          `json:"backends"`
}

// frontendDetails is an address with the state of its row in the kernel.
type frontendDetails struct {
	*address
	Status reconciler.Status `json:"status"`
}

// String is "10.96.0.10:80/TCP (ClusterIP, port http): 2 backends".
func (f frontendDetails) String() string {
	kind := f.Type.String()
	if f.PortName != "" {
		kind += ", port " + f.PortName
	}
	text := fmt.Sprintf("%s (%s): %s", f.Frontend, kind, cmp.Or(f.none(), plural(len(f.Backends), "backend")))
	switch f.Status.Kind {
	case reconciler.StatusKindError:
		text += "; not in the kernel: " + f.Status.GetError()
	case reconciler.StatusKindPending, reconciler.StatusKindRefreshing:
		text += "; not yet in the kernel"
	}
	return text
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// TableHeader names the columns of TableRow.
func (*details) TableHeader() []string {
	return []string{"ID", "Service", "Type", "Options", "Frontends", "Backends", "Problems", "Source"}
}

// TableRow is the row as text; frontends, backends and problems have a line each.
func (d *details) TableRow() []string {
	row := d.Service.TableRow() // ID, Service, Type, Options, Problems, Source
	var frontends, backends []string
	for _, f := range d.Frontends {
		frontends = append(frontends, f.String())
	}
	for _, b := range d.Backends {
		backends = append(backends, b.of(d.Service))
	}
	lines := func(list []string) string { return strings.Join(list, "\n") }
	return append(row[:4:4], lines(frontends), lines(backends), lines(d.Problems), d.Source)
}

// of is the backend as a Service has it: "10.0.1.2:8080/TCP (active, node1)".
func (t target) of(s *service.Service) string {
	parts := []string{t.State.String()}
	if t.Node != "" {
		parts = append(parts, t.Node)
	}
	for _, u := range t.Uses {
		if u.Service == s.Key() && u.Weight != service.DefaultWeight {
			parts = append(parts, fmt.Sprintf("weight %d", u.Weight))
		}
	}
	if t.Health != "" {
		parts = append(parts, "health "+t.Health)
	}
	return fmt.Sprintf("%s (%s)", t.L4(), strings.Join(parts, ", "))
}

// serviceDetails are all Services, sorted by number.
func (sv *services) serviceDetails(txn statedb.ReadTxn, t service.Tables) func(func(tableRow) bool) error {
	return func(yield func(tableRow) bool) error {
		backends := map[string][]target{}
		for b := range t.Backends.All(txn) {
			for _, u := range b.Uses {
				backends[u.Service.String()] = append(backends[u.Service.String()], target{b, sv.healthOf(txn, b.L4())})
			}
		}
		list := rows(t.Services.All(txn))
		slices.SortFunc(list, func(a, b *service.Service) int { return cmp.Compare(a.ID, b.ID) })
		for _, s := range list {
			d := &details{Service: s, Frontends: []frontendDetails{}, Backends: backends[s.Key().String()]}
			slices.SortFunc(d.Backends, func(a, b target) int { return cmp.Compare(a.ID, b.ID) })
			frontends := rows(t.Frontends.List(txn, service.FrontendsByService(s.Key())))
			slices.SortFunc(frontends, func(a, b *service.Frontend) int { return a.L4().Compare(b.L4()) })
			for _, f := range frontends {
				for _, r := range addresses(txn, t.Backends, f) {
					d.Frontends = append(d.Frontends, frontendDetails{r, f.Status})
				}
			}
			if !yield(d) {
				break
			}
		}
		return nil
	}
}
