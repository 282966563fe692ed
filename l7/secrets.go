package l7

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"myelin/agent/feature"
	"myelin/cluster"
	"myelin/internal/table"
	"myelin/l7/config"
	"myelin/l7/httpproxy"
	"myelin/policy"
)

// secretUse is a Secret that a rule names. It has nothing of the contents.
type secretUse struct {
	Policy string `json:"policy"`
	Rule   string `json:"rule"`
	// Field is the one that names it: terminatingTLS, originatingTLS or headerMatches.
	Field  string `json:"field"`
	Secret string `json:"secret"`
	// Problem is why it cannot be used; empty: it is.
	Problem string `json:"problem,omitempty"`
}

// TableHeader names the columns of TableRow.
func (*secretUse) TableHeader() []string { return []string{"Policy", "Field", "Secret", "State"} }

// TableRow is the row as text.
func (u *secretUse) TableRow() []string {
	state := "used"
	if u.Problem != "" {
		state = u.Problem + "; what needs it is denied"
	}
	return []string{u.Policy, u.Field, u.Secret, state}
}

// WideHeader names the columns of WideRow.
func (*secretUse) WideHeader() []string { return []string{"Rule"} }

// WideRow has what -o wide shows beside TableRow.
func (u *secretUse) WideRow() []string { return []string{u.Rule} }

// secretProblems say which Secrets cannot be used.
func secretProblems(uses []*secretUse) (out []string) {
	for _, u := range uses {
		if u.Problem != "" {
			out = append(out, fmt.Sprintf("%s: %s: what needs it is denied", u.Rule, u.Problem))
		}
	}
	return out
}

func (f *Feature) eachSecret(yield func(feature.Row) bool) error {
	f.mu.Lock()
	uses := f.uses
	f.mu.Unlock()
	for _, u := range uses {
		if !yield(u) {
			break
		}
	}
	return nil
}

// followSecrets gives the proxy the contents of Secrets that have changed.
func (f *Feature) followSecrets(ctx context.Context) error {
	if table.WaitInitialized(ctx, f.DB, f.Cluster.Secrets) != nil {
		return nil
	}
	return table.Loop(ctx, 0, func(w *table.Watch) error {
		_, changed := f.Cluster.Secrets.AllWatch(f.DB.ReadTxn())
		w.Add(changed)
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.given == nil {
			return nil
		}
		_ = f.write(ctx) // it is logged, and watch makes the next attempt
		return nil
	})
}

// secretKey is where the Secret that a rule names is. At an API server the agent reads one namespace, where Cilium's
// operator and others put copies under the names that Cilium has for them: those of both, with a hyphen.
func (f *Feature) secretKey(ref policy.SecretRef) cluster.Key {
	only := f.Config.L7.SecretsNamespace
	if !f.Config.Kubernetes() || ref.Namespace == only {
		return cluster.Key{Namespace: ref.Namespace, Name: ref.Name}
	}
	return cluster.Key{Namespace: only, Name: ref.Namespace + "-" + ref.Name}
}

func (f *Feature) findSecret(ref policy.SecretRef) (map[string][]byte, error) {
	key := f.secretKey(ref)
	s, _, ok := f.Cluster.Secrets.Get(f.DB.ReadTxn(), cluster.SecretByKey(key))
	switch {
	case ok:
		return s.Data, nil
	case key.Namespace != ref.Namespace:
		return nil, fmt.Errorf("Secret %s does not exist in namespace %s as %s", ref, key.Namespace, key.Name)
	}
	return nil, fmt.Errorf("Secret %s does not exist", ref)
}

// withSecrets is a configuration with the contents of the Secrets that its rules name, and without what needs others.
// The caller holds mu.
func (f *Feature) withSecrets(given *config.Config) *config.Config {
	out, uses := resolve(given, f.findSecret)
	before := secretProblems(f.uses)
	for _, problem := range secretProblems(uses) {
		if !slices.Contains(before, problem) {
			f.Log.Warn("A Secret of a policy cannot be used", "problem", problem)
		}
	}
	f.uses = uses
	return out
}

// resolver collects the Secrets of rules.
type resolver struct {
	find func(policy.SecretRef) (map[string][]byte, error)
	data httpproxy.Secrets
	uses map[secretUse]bool
}

// resolve is a configuration with Secrets. What of a rule names one that cannot be used is left out: a rule without
// parts allows nothing.
func resolve(c *config.Config, find func(policy.SecretRef) (map[string][]byte, error)) (*config.Config, []*secretUse) {
	r := &resolver{find: find, data: httpproxy.Secrets{}, uses: map[secretUse]bool{}}
	out := *c
	out.Rules = slices.Clone(c.Rules)
	for i := range out.Rules {
		parts := make([]config.Part, 0, len(out.Rules[i].Parts))
		for _, p := range out.Rules[i].Parts {
			if l7, ok := r.usable(p.Origin, p.L7); ok {
				parts = append(parts, config.Part{Origin: p.Origin, L7: l7})
			}
		}
		out.Rules[i].Parts = parts
	}
	out.Secrets = nil
	for _, ref := range slices.SortedFunc(maps.Keys(r.data), compareRefs) {
		out.Secrets = append(out.Secrets, config.Secret{SecretRef: ref, Data: r.data[ref]})
	}
	var uses []*secretUse
	for u := range r.uses {
		uses = append(uses, &u)
	}
	slices.SortFunc(uses, func(a, b *secretUse) int {
		return strings.Compare(a.Rule+"\x00"+a.Field+"\x00"+a.Secret, b.Rule+"\x00"+b.Field+"\x00"+b.Secret)
	})
	return &out, uses
}

func compareRefs(a, b policy.SecretRef) int { return strings.Compare(a.String(), b.String()) }

// usable is what of a rule can be enforced; ok is false if nothing can.
func (r *resolver) usable(origin policy.Origin, l7 policy.L7) (_ policy.L7, ok bool) {
	ok = true
	if t := l7.Terminating; t != nil {
		ok = r.use(origin, "terminatingTLS", t.Secret, policy.L7{Terminating: t})
	}
	if t := l7.Originating; t != nil {
		ok = r.use(origin, "originatingTLS", t.Secret, policy.L7{Originating: t}) && ok
	}
	requests := make([]policy.HTTPRule, 0, len(l7.HTTP))
	for _, rule := range l7.HTTP {
		good := true
		for _, m := range rule.HeaderMatches {
			if m.Secret != nil {
				only := policy.L7{HTTP: []policy.HTTPRule{{HeaderMatches: []policy.HeaderMatch{m}}}}
				good = r.use(origin, "headerMatches", *m.Secret, only) && good
			}
		}
		if good {
			requests = append(requests, rule)
		}
	}
	if len(requests) < len(l7.HTTP) {
		ok = ok && len(requests) > 0 // without any, the rule would allow all requests
		l7.HTTP = requests
	}
	return l7, ok
}

// use notes that a rule names a Secret, and reports whether that serves for what the rule says of it.
func (r *resolver) use(origin policy.Origin, field string, ref policy.SecretRef, of policy.L7) bool {
	data, err := r.find(ref)
	if err == nil {
		err = httpproxy.CheckSecrets(of, httpproxy.Secrets{ref: data})
	} else {
		err = fmt.Errorf("%s: %w", field, err)
	}
	u := secretUse{Policy: origin.Ref.String(), Rule: origin.String(), Field: field, Secret: ref.String()}
	if err != nil {
		u.Problem = err.Error()
	} else {
		r.data[ref] = data
	}
	r.uses[u] = true
	return err == nil
}
