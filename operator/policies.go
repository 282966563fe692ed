package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"myelin/cluster"
	"myelin/kube"
	"myelin/kube/crd"
	"myelin/policy"
	"myelin/policy/parse"
)

// policyObject is a policy, and what is wrong with it.
type policyObject struct {
	metav1.ObjectMeta

	status crd.PolicyStatus
	faults cluster.FieldErrors
	// unenforced are the parts that agents do not enforce, as in policy.Object.
	unenforced []string
}

// policyKey names one.
type policyKey struct {
	kind string
	cluster.Key
}

// readPolicy reads policies of a kind as agents do.
func readPolicy(kind schema.GroupVersionKind) func([]byte) (*policyObject, error) {
	strict := parse.Readers()[kind.GroupVersion().String()+"/"+kind.Kind]
	return func(raw []byte) (*policyObject, error) {
		var head struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Status   json.RawMessage   `json:"status"`
		}
		if err := json.Unmarshal(raw, &head); err != nil {
			return nil, err
		}
		m := &head.Metadata
		p := &policyObject{ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace,
			ResourceVersion: m.ResourceVersion, Generation: m.Generation}}
		// A status that another client wrote is written anew.
		if json.Unmarshal(head.Status, &p.status) != nil {
			p.status = crd.PolicyStatus{}
		}
		var row *policy.Object
		row, p.faults = strict(raw, parse.Origin{Source: kube.Origin})
		if row != nil && len(p.faults) == 0 {
			p.unenforced = row.Unenforced()
		}
		return p, nil
	}
}

// report is what a node says of its policies.
type report struct {
	node     string
	revision uint64
	failing  map[policyKey]string
	err      string
}

// reports are those of nodes that say something, by name.
func reports(objects map[cluster.Key]*crd.CiliumNode) (list []report) {
	for key, c := range objects {
		p := c.Status.Policies
		if p == nil {
			continue
		}
		r := report{node: key.Name, err: p.Error, failing: map[policyKey]string{}}
		r.revision, _ = strconv.ParseUint(p.Revision, 10, 64)
		for _, f := range p.Failing {
			r.failing[policyKey{f.Kind, cluster.Key{Namespace: f.Namespace, Name: f.Name}}] = f.Reason
		}
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b report) int { return cmp.Compare(a.node, b.node) })
	return list
}

// maxFailing bounds the nodes in a policy's status.
const maxFailing = 10

// hasCounts reports whether the status of a kind says how many nodes have a policy: only Cilium's kinds, which this
// project defines, have a field for it.
func hasCounts(r *kube.Resource) bool { return r.Group == "cilium.io" }

// realised counts the nodes that have a policy; nil if no node reports.
func realised(key policyKey, p *policyObject, nodes []report) *crd.Realised {
	if len(nodes) == 0 {
		return nil
	}
	out := &crd.Realised{Revision: crd.Revision(p.Generation, p.ResourceVersion, &p.status), Generation: p.Generation,
		Wanted: int32(len(nodes))}
	revision, _ := strconv.ParseUint(out.Revision, 10, 64)
	for i := range nodes {
		reason := cmp.Or(nodes[i].failing[key], nodes[i].err)
		switch {
		case reason != "":
			if len(out.Failing) < maxFailing {
				out.Failing = append(out.Failing, crd.FailingNode{Node: nodes[i].node, Reason: reason})
			}
		case nodes[i].revision >= revision:
			out.Nodes++
		}
	}
	return out
}

// keepPolicies says of each policy whether it is valid, and how many nodes have it.
func (o *Operator) keepPolicies(ctx context.Context, w *world) error {
	objects, known := w.ciliumNodes.All()
	if !known {
		return nil
	}
	nodes := reports(objects)
	w.due = time.Time{}
	var errs []error
	invalid, there := 0, map[policyKey]bool{}
	for _, c := range w.policies {
		all, _ := c.All()
		for key, p := range all {
			if len(p.faults) > 0 {
				invalid++
			}
			k := policyKey{c.Resource().Kind, key}
			there[k] = true
			var counts *crd.Realised
			if hasCounts(c.Resource()) {
				counts = realised(k, p, nodes)
			}
			collect(&errs, o.writePolicy(ctx, w, c, k, p, counts))
		}
	}
	for key := range w.counted {
		if !there[key] {
			delete(w.counted, key)
		}
	}
	o.metrics.setPolicies(len(there), invalid)
	return errors.Join(errs...)
}

// writePolicy writes what is not in a policy's status yet. Counts alone, which nodes
// change one after the other, are written now and then.
func (o *Operator) writePolicy(ctx context.Context, w *world, c *kube.Cache[*policyObject], key policyKey,
	p *policyObject, counts *crd.Realised) error {
	conditions := slices.Clone(p.status.Conditions)
	changed := false
	for _, condition := range p.conditions(metav1.NewTime(o.Now())) {
		changed = meta.SetStatusCondition(&conditions, condition) || changed
	}
	counted := equality.Semantic.DeepEqual(counts, p.status.Realised)
	if !changed && counted {
		return nil
	}
	if now := o.Now(); !changed && now.Sub(w.counted[key]) < o.CountPace {
		if due := w.counted[key].Add(o.CountPace); w.due.IsZero() || due.Before(w.due) {
			w.due = due
		}
		return nil
	}
	status := map[string]any{"conditions": conditions}
	if hasCounts(c.Resource()) {
		status["realised"] = countsPatch(counts)
	}
	part := map[string]any{"metadata": map[string]any{"resourceVersion": p.ResourceVersion}, "status": status}
	var raw []byte
	if err := o.client.Merge(ctx, c.Resource().Path(key.Namespace, key.Name)+"/status", part, &raw); err != nil {
		return fmt.Errorf("write the status of %s %s: %w", key.kind, key.Key, err)
	}
	w.counted[key] = o.Now()
	return c.Put(raw)
}

// countsPatch is the part of a merge patch that has the counts. Null removes what is there: a list of none, and counts
// that are not reported.
func countsPatch(counts *crd.Realised) map[string]any {
	if counts == nil {
		return nil
	}
	entry := map[string]any{"revision": counts.Revision, "generation": counts.Generation, "nodes": counts.Nodes,
		"wanted": counts.Wanted, "failing": nil}
	if len(counts.Failing) > 0 {
		entry["failing"] = counts.Failing
	}
	return entry
}

// conditions say whether the newest version is in force, and whether all of it is.
func (p *policyObject) conditions(now metav1.Time) []metav1.Condition {
	valid := metav1.Condition{
		Type: "Valid", Status: metav1.ConditionTrue, Reason: "Accepted", Message: "Policy validation succeeded",
		ObservedGeneration: p.Generation, LastTransitionTime: now,
	}
	enforced := metav1.Condition{
		Type: "Enforced", Status: metav1.ConditionTrue, Reason: "Enforced", Message: "All of the policy is enforced",
		ObservedGeneration: p.Generation, LastTransitionTime: now,
	}
	switch {
	case len(p.faults) > 0:
		valid.Status, valid.Reason, valid.Message = metav1.ConditionFalse, "Refused", faultText(p.faults)
		enforced.Status, enforced.Reason = metav1.ConditionFalse, "Refused"
		enforced.Message = "The last good version is in force; on nodes that know of none, what is not understood " +
			"allows nothing"
	case len(p.unenforced) > 0:
		enforced.Status, enforced.Reason = metav1.ConditionFalse, "PartlyEnforced"
		enforced.Message = bounded("What is not enforced allows nothing: " + strings.Join(p.unenforced, "; "))
	}
	return []metav1.Condition{valid, enforced}
}

// maxMessage bounds a condition's message, in bytes; the API has 32 KiB.
const maxMessage = 4096

func faultText(faults cluster.FieldErrors) string {
	var parts []string
	for _, f := range faults {
		parts = append(parts, strings.TrimPrefix(f.Error(), ": "))
	}
	return bounded(strings.Join(parts, "; "))
}

// bounded is a message that a condition has room for.
func bounded(text string) string {
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + " …"
	}
	return text
}
