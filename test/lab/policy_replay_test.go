package labtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	observerpb "github.com/cilium/cilium/api/v1/observer"
	"sigs.k8s.io/yaml"

	flowfile "myelin/hubble/record"
	"myelin/policy/replay"
	"myelin/test/policy/scenario"
)

// replayed is a question whose flow is recorded, and what became of it last.
type replayed struct {
	question
	key  replayKey
	when string
	// came: it was answered; failed: something else than a policy has stopped it.
	came   bool
	failed error
}

// replayKey is a flow as it is recorded. seen is the source as the destination sees it.
type replayKey struct {
	src, seen, dst netip.Addr
	proto          uint8
	port           uint16
}

func (k replayKey) String() string {
	return fmt.Sprintf("%s (seen as %s) -> %s protocol %d port %d", k.src, k.seen, k.dst, k.proto, k.port)
}

// TestPolicyReplay records traffic, predicts by the recording what each of several changes of policies does to it,
// makes the change and sends the same traffic again: each flow's verdict must be what was predicted, by what arrives
// and by what is recorded then. The traffic is TCP, UDP, SCTP and ICMP between pods, nodes and the world, and to a
// Service.
//
//	┌─ node1 ────────────┐  ┌─ node2 ────────────┐
//	│ x/a x/c  v/a v/c   │  │ x/b  v/b  z/b      │     default/replay: v/b, also at a node port
//	│ z/a z/c            │  │                    │
//	└─────────┬──────────┘  └─────────┬──────────┘
//	══════════╧═══ world/one, /two ═══╧═══════════
func TestPolicyReplay(t *testing.T) {
	for _, m := range []string{"native", "vxlan"} {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			r := upReplay(t, modeNamed(m))
			r.send(t, "without policies", nil)
			var before []string
			for i, s := range r.steps {
				documents := strings.Split(strings.TrimPrefix(string(s.Objects), "---\n"), "\n---\n")
				documents = r.translate(documents)
				r.step(t, fmt.Sprintf("%d %s", i+1, s.Name), before, documents)
				before = documents
			}
			t.Logf("policy_diff_mismatches %d of %d", r.mismatches, r.compared)
			if m == "native" {
				record(t, result{"flow/policy_diff_mismatches", float64(r.mismatches), "flows"})
			}
			if r.mismatches > 0 || r.compared < 200*len(r.steps) || r.changed == 0 {
				t.Errorf("%d of %d verdicts are other ones than were predicted; %d were predicted to change",
					r.mismatches, r.compared, r.changed)
			}
		})
	}
}

// replayCluster is where recorded traffic is replayed.
type replayCluster struct {
	*policed
	steps     []scenario.Scenario
	questions []*replayed
	file      string // the last recording

	mismatches, compared, changed int
}

// replaySteps are the scenarios of policies alone, each of another kind of rule, in an order that adds, replaces and
// removes policies.
func replaySteps() []string {
	return []string{"np-allow-ingress", "np-deny-egress", "np-ipblock-in", "cnp-entities", "cnp-deny-beats", "cnp-icmp",
		"cnp-named-port", "cnp-cidr", "cnp-cidr-groups", "np-both-ends", "tier-order", "tier-pass", "none"}
}

func upReplay(t *testing.T, m mode) *replayCluster {
	t.Helper()
	all, err := scenario.All()
	check(t, err)
	r := &replayCluster{}
	for _, name := range replaySteps() {
		i := slices.IndexFunc(all, func(s scenario.Scenario) bool { return s.Name == name })
		if i < 0 {
			t.Fatalf("there is no scenario %s", name)
		}
		r.steps = append(r.steps, all[i])
	}
	r.policed = upPoliced(t, setup{mode: m, values: map[string]any{"kubeProxyReplacement": true,
		"hubble.listenAddress": ":4244", "hubble.tls.enabled": false, "hubble.eventBufferCapacity": 65535,
		"bpf.events.default.rateLimit": 100000, "bpf.events.default.burstLimit": 100000}}, r.steps)
	service := serviceYAML("replay", 30, "  type: NodePort\n")
	for _, f := range []int{4, 6} {
		service += sliceYAML("replay", f) + endpointYAML(r.places["v/b"].addr(f), "node2") + "---\n"
	}
	r.apply("service", strings.Replace(service, "port: 80,", "port: 80, nodePort: 30090,", 1))
	r.ask(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.Node("node1").Exec(ctx, "myelin", "relay", "--peer-service",
			"unix://"+r.hubbleSocket("node1"), "--listen", "127.0.0.1:4245")
		ended <- err
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return r
}

// ask makes the questions: each probe of the scenarios once, and those to the Service.
func (r *replayCluster) ask(t *testing.T) {
	t.Helper()
	seen := map[string]bool{}
	add := func(name string, q question, seenAs netip.Addr, dst netip.AddrPort) {
		src := q.src
		if !src.IsValid() {
			src = q.from.addr(family(dst.Addr()))
		}
		if !seenAs.IsValid() {
			seenAs = src
		}
		if !seen[name] {
			seen[name] = true
			r.questions = append(r.questions, &replayed{question: q, when: name,
				key: replayKey{src, seenAs, dst.Addr(), q.proto, dst.Port()}})
		}
	}
	for _, s := range r.steps {
		for _, probe := range s.Probes {
			q := r.question(probe)
			probe.Allow = true
			add(probe.String(), q, netip.Addr{}, q.dst)
		}
	}
	for _, f := range r.stack.families {
		backend := at(r.places["v/b"].addr(f), 8080)
		for _, from := range []string{"x/a", "x/b", "z/c", "node/node1"} {
			add(fmt.Sprintf("%s to the Service, IPv%d", from, f), question{from: r.places[from], proto: protoTCP,
				dst: at(serviceAddr(30, f), 80)}, netip.Addr{}, backend)
			// What is denied to a Service is recorded with its address.
			add(fmt.Sprintf("%s to the Service's address, IPv%d", from, f), question{from: r.places[from],
				proto: protoTCP, dst: at(serviceAddr(30, f), 80)}, netip.Addr{}, at(serviceAddr(30, f), 80))
		}
		world, node := r.places["world/one"], r.places["node/node1"].addr(f)
		add(fmt.Sprintf("the world to the node port, IPv%d", f), question{from: world, src: world.addr(f),
			proto: protoTCP, dst: at(node, 30090)}, node, backend)
	}
}

// send sends all traffic, as predicted, and records it.
func (r *replayCluster) send(t *testing.T, when string, predicted map[replayKey]bool) {
	t.Helper()
	list := make([]question, len(r.questions))
	for i, q := range r.questions {
		want, ok := predicted[q.key]
		list[i] = q.question
		list[i].want = want || !ok
	}
	begin := time.Now()
	for i, err := range r.verdicts(t.Context(), list) {
		q := r.questions[i]
		q.failed = nil
		switch {
		case list[i].want && err != nil && !silent(err), !list[i].want && err != nil && err.Error() != "came through":
			q.failed = err
		default:
			q.came = list[i].want == (err == nil)
		}
	}
	sent := time.Since(begin)
	time.Sleep(patience(1500 * time.Millisecond)) // the last events are on their way
	r.file = filepath.Join(t.TempDir(), strings.ReplaceAll(when, " ", "-")+".json")
	out, err := r.Node("node1").Exec(t.Context(), "myelin", "flows", "record", r.file, "--server", "127.0.0.1:4245",
		"--since", begin.UTC().Format(time.RFC3339Nano))
	if err != nil {
		t.Fatalf("%s: record: %v: %s", when, err, out)
	}
	t.Logf("%s: %d questions in %v", when, len(list), sent.Round(time.Millisecond))
}

// objectNames are the policies and groups of documents, each "Kind/namespace/name".
func objectNames(t *testing.T, documents []string) (names []string) {
	t.Helper()
	for _, d := range documents {
		var o struct {
			Kind     string
			Metadata struct{ Namespace, Name string }
		}
		check(t, yaml.Unmarshal([]byte(d), &o))
		if strings.HasSuffix(o.Kind, "Policy") || o.Kind == "CiliumCIDRGroup" {
			names = append(names, strings.ReplaceAll(o.Kind+"/"+o.Metadata.Namespace+"/"+o.Metadata.Name, "//", "/"))
		}
	}
	return names
}

// step predicts what a change of policies does to the recorded flows, makes it and compares.
func (r *replayCluster) step(t *testing.T, when string, before, after []string) {
	t.Helper()
	predicted, verdicts := r.predict(t, when, before, after)
	files := []string{}
	if len(objectNames(t, after)) > 0 {
		files = after
	}
	if len(files) > 0 {
		r.enforce(t, files...)
	}
	kept := objectNames(t, after)
	gone := slices.DeleteFunc(slices.Clone(before), func(d string) bool {
		names := objectNames(t, []string{d})
		return len(names) == 0 || slices.Contains(kept, names[0])
	})
	if len(gone) > 0 {
		r.remove(t, gone...)
	}
	r.send(t, when, verdicts)
	r.compare(t, when, predicted)
}

// predict asks for the verdicts on the last recording.
func (r *replayCluster) predict(t *testing.T, when string, before, after []string) ([]replay.Change,
	map[replayKey]bool) {
	t.Helper()
	args := []string{"policy", "diff", "--all", "-o", "json", "--flows", r.file}
	kept := objectNames(t, after)
	for _, name := range objectNames(t, before) {
		if !slices.Contains(kept, name) {
			args = append(args, "--delete", name)
		}
	}
	if len(kept) > 0 {
		file := filepath.Join(t.TempDir(), "changed.yaml")
		check(t, os.WriteFile(file, []byte(strings.Join(after, "\n---\n")), 0o644))
		args = append(args, file)
	}
	out, err := r.cli("node2", args...)
	var result replay.Result
	if e := json.Unmarshal([]byte(out), &result); e != nil {
		t.Fatalf("%s: policy diff: %v, %v: %s", when, err, e, out)
	}
	if changes := err != nil; changes != (result.Changed > 0) {
		t.Errorf("%s: policy diff ends with %v, and %d flows change", when, err, result.Changed)
	}
	var list []replay.Change
	verdicts := map[replayKey]bool{}
	for _, o := range result.Owners {
		for _, c := range o.Flows {
			list = append(list, c)
			verdicts[keyOfChange(c)] = c.After.Verdict == "allowed"
			if c.Recorded != c.Before.Verdict {
				t.Logf("%s: recorded otherwise: %+v", when, c)
			}
		}
	}
	r.changed += result.Changed
	t.Logf("%s: %d flows decided, %d change, %d recorded otherwise (%s); not decided: %+v; missing: %v", when,
		result.Flows, result.Changed, result.Unlike, result.UnlikeExample, result.Undecided, result.Gaps)
	if result.Unlike > 0 {
		t.Errorf("%s: %d flows were recorded with another verdict than the policies gave: %s", when, result.Unlike,
			result.UnlikeExample)
	}
	return list, verdicts
}

func keyOfChange(c replay.Change) replayKey {
	k := replayKey{c.SourceAddress, c.SeenAddress, c.DestinationAddress, c.Proto, c.Number}
	if !k.seen.IsValid() {
		k.seen = k.src
	}
	return k
}

// compare compares what was predicted with what came through, and with what was recorded.
func (r *replayCluster) compare(t *testing.T, when string, predicted []replay.Change) {
	t.Helper()
	came, rec := map[replayKey]*replayed{}, r.recorded(t)
	for _, q := range r.questions {
		came[q.key] = q
	}
	unknown := 0
	for _, c := range predicted {
		key, allowed := keyOfChange(c), c.After.Verdict == "allowed"
		q, flow := came[key], rec[key]
		known, wrong := false, ""
		if q != nil && q.failed == nil {
			known = true
			if q.came != allowed {
				wrong = fmt.Sprintf("%s: came through: %v", q.when, q.came)
			}
		}
		if flow != nil {
			known = true
			if !allowed && flow.Delivered > 0 || allowed && flow.Denied > 0 {
				wrong += fmt.Sprintf(" recorded: %d denied, %d delivered", flow.Denied, flow.Delivered)
			}
		}
		if !known {
			unknown++
			continue
		}
		r.compared++
		if wrong != "" {
			r.mismatches++
			t.Errorf("%s: %s: predicted %+v; %s", when, key, c, wrong)
		}
	}
	if unknown > 0 {
		t.Logf("%s: %d predicted flows did not come again", when, unknown)
	}
}

// recorded are the flows of the last recording.
func (r *replayCluster) recorded(t *testing.T) map[replayKey]*replay.Flow {
	t.Helper()
	file, err := os.Open(r.file)
	check(t, err)
	defer file.Close()
	c := replay.NewCollector()
	var gaps []string
	check(t, flowfile.Read(file, r.file, func(res *observerpb.GetFlowsResponse) error {
		if res.GetFlow() != nil {
			c.Add(res.GetFlow())
		} else if gap := flowfile.Gap(res); gap != "" {
			gaps = append(gaps, gap)
		}
		return nil
	}))
	if len(gaps) > 0 {
		t.Error(errors.New("the recording has gaps: " + strings.Join(gaps, "; ")))
	}
	rec, out := c.Recording(), map[replayKey]*replay.Flow{}
	for i, f := range rec.Flows {
		out[replayKey{rec.Ends[f.Source].Addr, rec.Ends[f.Seen].Addr, rec.Ends[f.Destination].Addr, f.Proto,
			f.Port}] = &rec.Flows[i]
	}
	return out
}
