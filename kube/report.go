package kube

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/cilium/statedb"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"myelin/kube/crd"
)

// ruleVersion is the version of a policy's rules, from its text.
func ruleVersion(o runtime.Object) uint64 {
	r, ok := o.(*raw)
	if !ok {
		return 0
	}
	var object struct {
		Status crd.PolicyStatus `json:"status"`
	}
	if json.Unmarshal(r.text, &object) != nil { // another's status
		object.Status = crd.PolicyStatus{}
	}
	version, _ := strconv.ParseUint(crd.Revision(r.Generation, r.ResourceVersion, &object.Status), 10, 64)
	return version
}

// reached notes how far the tables are with policies.
func (s *Source) reached(version uint64, revision statedb.Revision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version > s.version {
		s.version, s.revision = version, revision
	}
}

// Reports say what a node has of the cluster's policies.
type Reports struct {
	// Node is the node's name, which is its CiliumNode's.
	Node string
	// Realised is the revision of the table of policies of which the kernel has all.
	Realised func() statedb.Revision
	// Failing are policies that are not in force as they are written, and Error is
	// what keeps pods' policies out of the kernel, whichever they are.
	Failing func() (list []crd.FailingPolicy, err string)
}

// maxFailing bounds the policies in a report.
const maxFailing = 20

const (
	// reportMin is the least time between reports of a node, and reportEach what it is
	// more for each node: all of a cluster's together are 16 a second at most.
	reportMin  = 5 * time.Second
	reportEach = 60 * time.Millisecond
	// reportAgain is when a report is repeated that the server may have lost.
	reportAgain = 10 * time.Minute
	// reportDoublings bound how much rarer reports become while none is taken, as where
	// the CiliumNode does not exist.
	reportDoublings = 4
)

// Report writes reports into the status of the node's CiliumNode, when they change, until
// ctx ends. Without that object, or without the right to write it, nothing is said.
func (s *Source) Report(ctx context.Context, r Reports) error {
	client, err := s.Server.Client()
	if err != nil {
		return err
	}
	var sent *crd.NodePolicies
	var at time.Time
	reached := "" // the newest version that was realised
	for refused := 0; ; {
		pause := max(reportMin, time.Duration(s.Tables.Nodes.NumObjects(s.DB.ReadTxn()))*reportEach) << min(refused,
			reportDoublings)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause/2 + rand.N(pause)):
		}
		now := s.report(r, &reached)
		if now == nil || equality.Semantic.DeepEqual(now, sent) && time.Since(at) < reportAgain {
			continue
		}
		at = time.Now()
		if err := client.Merge(ctx, "/apis/cilium.io/v2/ciliumnodes/"+r.Node+"/status", reportPatch(now),
			nil); err != nil {
			sent, refused = nil, refused+1
			if !apierrors.IsNotFound(err) && ctx.Err() == nil {
				s.Log.Debug("the report of policies is not written", "error", err)
			}
			continue
		}
		sent, refused = now, 0
	}
}

// report is what is to be said now; nil: nothing yet.
func (s *Source) report(r Reports, reached *string) *crd.NodePolicies {
	s.mu.Lock()
	version, revision, synced := s.version, s.revision, s.synced
	s.mu.Unlock()
	if !synced {
		return nil
	}
	if version > 0 && r.Realised() >= revision {
		*reached = strconv.FormatUint(version, 10)
	}
	out := &crd.NodePolicies{Revision: *reached}
	out.Failing, out.Error = r.Failing()
	if more := len(out.Failing) - maxFailing; more > 0 {
		out.Failing, out.FailingMore = out.Failing[:maxFailing], int32(more)
	}
	return out
}

// reportPatch makes all of a report what it is, also what is no longer there.
func reportPatch(p *crd.NodePolicies) any {
	part := map[string]any{"revision": p.Revision, "failing": nil, "failingMore": nil, "error": nil}
	if len(p.Failing) > 0 {
		part["failing"] = p.Failing
	}
	if p.FailingMore > 0 {
		part["failingMore"] = p.FailingMore
	}
	if p.Error != "" {
		part["error"] = p.Error
	}
	return map[string]any{"status": map[string]any{"policies": part}}
}
