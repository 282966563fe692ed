package l7

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"myelin/agent/feature"
)

func inodeOf(f *os.File) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return 0, fmt.Errorf("stat the proxy's network namespace: %w", err)
	}
	return stat.Ino, nil
}

// lists are the tables of the proxy.
func (f *Feature) lists() map[string]feature.List {
	return map[string]feature.List{
		"fqdn":           {Header: new(nameRow).TableHeader(), Each: f.eachName},
		"policy-secrets": {Header: new(secretUse).TableHeader(), Each: f.eachSecret},
	}
}

// nameRow is an address of a name that a pod has got.
type nameRow struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	// TTL is what remains of it.
	TTL string `json:"ttl"`
	Pod string `json:"pod"`
	// Policies are those of the pod whose toFQDNs the name matches.
	Policies []string `json:"policies,omitempty"`
}

// TableHeader names the columns of TableRow.
func (*nameRow) TableHeader() []string { return []string{"Name", "Address", "TTL", "Pod", "Policies"} }

// TableRow is the row as text.
func (r *nameRow) TableRow() []string {
	return []string{r.Name, r.Address, r.TTL, r.Pod, strings.Join(r.Policies, ", ")}
}

func (f *Feature) eachName(yield func(feature.Row) bool) error {
	if !f.Config.EnforcesL7() || !f.needed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusTime)
	defer cancel()
	rows, err := f.client.Names(ctx)
	if err != nil {
		return err
	}
	bySlot := map[uint16]map[uint32][]string{}
	for i := range rows {
		r := &rows[i]
		policies, known := bySlot[r.Slot]
		if !known {
			policies = f.Policies(r.Slot)
			bySlot[r.Slot] = policies
		}
		matching := policiesOf(r.Selectors, policies)
		for _, a := range r.Addresses {
			row := &nameRow{Name: r.Name, Address: a.Addr.String(), TTL: a.TTL.Round(time.Second).String(),
				Pod: r.Pod.String(), Policies: matching}
			if !yield(row) {
				return nil
			}
		}
	}
	return nil
}

// policiesOf are the policies that have one of the selectors, sorted.
func policiesOf(selectors []uint32, policies map[uint32][]string) (out []string) {
	for _, n := range selectors {
		out = append(out, policies[n]...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (f *Feature) needed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.wanted != nil
}

// status is the line of `myelin status`.
func (f *Feature) status() feature.Status {
	s := feature.Status{
		Name: "L7 Proxy", State: feature.Off, Chosen: "off", Wanted: fmt.Sprintf("l7Proxy: %t", f.Config.L7.Proxy),
		Why: "rules by HTTP request, DNS name or TLS server name allow nothing",
	}
	if !f.Config.EnforcesL7() {
		return s
	}
	s.State, s.Chosen, s.Why = feature.OK, "not started", "no policy needs it"
	if !f.needed() {
		return s
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusTime)
	defer cancel()
	now, ok := f.running(ctx)
	where := fmt.Sprintf("process %d", now.PID)
	if now.Pod != "" {
		where = "pod " + now.Pod
	}
	s.Chosen = fmt.Sprintf("%s: %s, %s", where, feature.Plural(now.Connections, "connection"),
		feature.Plural(now.Names, "name"))
	if now.Questions > 0 {
		s.Chosen += fmt.Sprintf(", %s answered without it", feature.Plural(now.Questions, "DNS question"))
	}
	s.Why = "policies have rules by HTTP request, DNS name or TLS server name"
	s.Cost = "per request of flows with L7 rules"
	if !ok {
		s.Chosen = "not running"
		s.Break("the proxy does not answer: flows with L7 rules are dropped (DROP_PROXY_DOWN)")
	}
	s.Problems = append(s.Problems, now.Problems...)
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, problem := range secretProblems(f.uses) {
		if i == feature.Few {
			s.FallBack("… and others: see `myelin policy secrets`")
			break
		}
		s.FallBack(problem)
	}
	if f.failed != nil {
		s.Break(f.failed.Error())
	}
	return s
}

func (f *Feature) metrics(s feature.Sink) {
	if !f.Config.EnforcesL7() || !f.needed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusTime)
	defer cancel()
	now, ok := f.running(ctx)
	up := 0.0
	if ok {
		up = 1
	}
	s.Gauge("myelin_proxy_up", "Whether the proxy for L7 rules answers.", up, nil)
	if !ok {
		return
	}
	for rule, n := range map[string]uint64{"received": now.DNS.Queries + now.Passed, "denied": now.DNS.Denied} {
		s.Counter("myelin_policy_l7_total", "Requests that the proxy has seen, by what became of them.", float64(n),
			prometheus.Labels{"rule": rule, "proxy_type": "fqdn"})
	}
	for rule, n := range now.Requests {
		s.Counter("myelin_policy_l7_total", "Requests that the proxy has seen, by what became of them.", float64(n),
			prometheus.Labels{"rule": rule, "proxy_type": "http"})
	}
	s.Gauge("myelin_proxy_connections", "Connections that the proxy serves.", float64(now.Connections), nil)
	s.Counter("myelin_fqdn_passed_queries_total", "DNS queries that passed in the datapath, without the proxy.",
		float64(now.Passed), nil)
	s.Gauge("myelin_fqdn_cached_questions", "DNS questions of pods whose messages pass in the datapath.",
		float64(now.Questions), nil)
	s.Gauge("myelin_fqdn_active_names", "Names that pods have resolved and whose TTL has not ended.",
		float64(now.Names), nil)
	s.Gauge("myelin_fqdn_active_ips", "Addresses of such names.", float64(now.Addresses), nil)
}
