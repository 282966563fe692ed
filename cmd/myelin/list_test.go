package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"myelin/agent"
	"myelin/agent/feature"
	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/drop"
	"myelin/policy/explain"
	"myelin/status"
)

func TestWriteTable(t *testing.T) {
	var got bytes.Buffer
	err := writeTable(&got, &apiv1.ListResponse{
		Columns: []string{"ID", "Pod", "Note"},
		Rows: []*apiv1.ListRow{
			{Cells: []string{"2", "demo/client", ""}},
			{Cells: []string{"65535", "", "two\nlines\tand a tab"}},
		},
	})
	want := "ID      Pod           Note\n2       demo/client   -\n65535   -             two; lines and a tab\n"
	if err != nil || got.String() != want {
		t.Errorf("got\n%swant\n%s%v", &got, want, err)
	}
	got.Reset()
	if err := writeFields(&got, []string{"ID", "Pod"}, []string{"2", "demo/client"}); err != nil ||
		got.String() != "ID   2\nPod  demo/client\n" {
		t.Errorf("got\n%s%v", &got, err)
	}
}

func dropped(n bpf.DatapathOutcome, packets uint64) *dropRow {
	return &dropRow{Row: *drop.Counter{Hook: bpf.FromPod, Outcome: drop.NewNames().Outcome(uint8(n)), Packets: packets,
		Bytes: 100 * packets}.Row()}
}

// Rules stand with the reason that they dropped for, once, and in what was
// added only if they dropped more.
func TestDropRules(t *testing.T) {
	rule := func(number uint32, hits uint64, place, name string) *ruleDrops {
		return &ruleDrops{Denial: explain.Denial{Endpoints: []string{"demo/web1", "demo/web2"}, Rule: number,
			Hits: hits}, Place: place, Name: name}
	}
	rows := func() []*dropRow {
		denied := dropped(bpf.DatapathOutcomeDROP_POLICY_DENIED, 7)
		again := *denied
		again.Hook = bpf.ToPod
		return []*dropRow{dropped(bpf.DatapathOutcomeDROP_TTL, 1), denied, &again}
	}
	audited := rule(3, 9, "only looks", "DROP_POLICY_DENIED")
	audited.Audited = true
	before := withRules(rows(), []*ruleDrops{rule(1, 3, "a", "DROP_POLICY_DENIED"),
		rule(2, 4, "b", "DROP_POLICY_DENIED")})
	more := rows()
	more[1].Packets = 9
	now := withRules(more, []*ruleDrops{rule(1, 5, "a", "DROP_POLICY_DENIED"), rule(2, 4, "b", "DROP_POLICY_DENIED"),
		rule(0, 8, "none", "DROP_POLICY_NO_RULE"), audited})
	var got bytes.Buffer
	if err := writeDrops(&got, now); err != nil || strings.Count(got.String(), "×") != 2 ||
		!strings.Contains(got.String(), "\n    5 × ingress of demo/web1, demo/web2: a\n    4 × ") {
		t.Errorf("%s%v", &got, err)
	}
	got.Reset()
	f := &dropsFlags{}
	grown := added(before, now)
	if err := f.writeAdded(&got, time.Unix(0, 0), grown); err != nil || len(grown) != 1 ||
		!strings.HasSuffix(got.String(), "+2 packets, +0 bytes\n    2 × ingress of demo/web1, demo/web2: a\n") {
		t.Errorf("%s%v", &got, err)
	}
	data, err := json.Marshal(now[1])
	var back dropRow
	if err != nil || json.Unmarshal(data, &back) != nil || len(back.Rules) != 2 || back.Rules[0].Hits != 5 ||
		back.Packets != 9 {
		t.Errorf("%s, %v", data, err)
	}
}

func TestWriteDrops(t *testing.T) {
	row := dropped
	before := []*dropRow{row(bpf.DatapathOutcomeDROP_TTL, 2), row(bpf.DatapathOutcomeDROP_VLAN, 9)}
	now := []*dropRow{row(bpf.DatapathOutcomeDROP_TTL, 5), row(bpf.DatapathOutcomeDROP_VLAN, 9),
		row(bpf.DatapathOutcomeDROP_MARTIAN, 1)}
	grown := added(before, now)
	if len(grown) != 2 || grown[0].Packets != 3 || grown[0].Bytes != 300 || grown[1].Name != "DROP_MARTIAN" ||
		grown[1].Packets != 1 {
		t.Errorf("grown: %+v", grown)
	}
	if now[0].Packets != 5 {
		t.Error("what was read has changed")
	}
	if anew := added(now, before[:1]); len(anew) != 1 || anew[0].Packets != 2 {
		t.Errorf("counters that were made anew: %+v", anew)
	}
	var got bytes.Buffer
	if err := writeDrops(&got, now[:1]); err != nil || !strings.HasPrefix(got.String(),
		"Hook       Verdict   Reason   Packets   Bytes\nfrom_pod   drop      TTL      5         500\n\nTTL: ") {
		t.Errorf("%s%v", &got, err)
	}
	got.Reset()
	if err := writeDrops(&got, nil); err != nil || got.String() != "nothing was dropped\n" {
		t.Errorf("%s%v", &got, err)
	}
}

func TestRequest(t *testing.T) {
	f := listFlags{filters: []string{"State=ready", "Pod~demo", "~x"}, limit: 7, output: output{format: outputJSON}}
	r, err := f.request(feature.View{Table: "endpoints"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range r.GetFilters() {
		got = append(got, x.GetColumn(), x.GetValue(), map[bool]string{true: "part", false: "all"}[x.GetPart()])
	}
	want := []string{"State", "ready", "all", "Pod", "demo", "part", "", "x", "part"}
	if !reflect.DeepEqual(got, want) || r.GetTable() != "endpoints" || r.GetLimit() != 7 || !r.GetJson() {
		t.Errorf("%v", r)
	}
	f = listFlags{}
	if r, err := f.request(feature.View{Table: "map", By: "NAME", Prefix: true}, []string{"flows"}); err != nil ||
		r.GetTable() != "map flows" {
		t.Errorf("%v, %v", r, err)
	}
	byID := feature.View{Table: "endpoints", By: "ID"}
	if r, err := f.request(byID, []string{"2"}); err != nil || len(r.GetFilters()) != 1 ||
		r.GetFilters()[0].GetColumn() != "ID" {
		t.Errorf("%v, %v", r, err)
	}
	for _, bad := range []listFlags{{filters: []string{"nothing"}}} {
		if _, err := bad.request(feature.View{}, nil); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
}

// TestNounsAreComplete: every verb has what its command needs.
func TestNounsAreComplete(t *testing.T) {
	commands := map[string]bool{}
	for _, n := range agent.Commands() {
		if commands[n.Name] {
			t.Errorf("two features have the command %s", n.Name)
		}
		commands[n.Name] = true
		for _, v := range n.Views {
			if v.Name == "" || v.Short == "" || v.Table == "" && !v.Prefix || v.Prefix && v.By == "" {
				t.Errorf("%s %+v", n.Name, v)
			}
		}
	}
	for name := range furtherVerbs() {
		if !commands[name] {
			t.Errorf("no feature has the command %s", name)
		}
	}
}

// fake answers as it is told: what is tested is what the command makes of it.
type fake struct {
	apiv1.UnimplementedAgentServer
	parts  []*apiv1.ListResponse
	err    error
	report *status.Report
	asked  *apiv1.ListRequest // the last one
}

func (f *fake) Status(context.Context, *apiv1.StatusRequest) (*apiv1.StatusResponse, error) {
	data, err := json.Marshal(f.report)
	return &apiv1.StatusResponse{Json: data}, err
}

func (f *fake) List(r *apiv1.ListRequest, stream apiv1.Agent_ListServer) error {
	f.asked = r
	for _, p := range f.parts {
		if err := stream.Send(p); err != nil {
			return err
		}
	}
	return f.err
}

func serveFake(t *testing.T, f *fake) (socket string) { return serveAgent(t, f) }

func serveAgent(t *testing.T, f apiv1.AgentServer) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := api.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	apiv1.RegisterAgentServer(s, f)
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return socket
}

// run runs the command of a noun.
func runNoun(args ...string) (out, errs string, err error) {
	for _, cmd := range nounCommands() {
		if cmd.Name() != args[0] {
			continue
		}
		var o, e bytes.Buffer
		cmd.SetArgs(args[1:])
		cmd.SetOut(&o)
		cmd.SetErr(&e)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err = cmd.Execute()
		return o.String(), e.String(), err
	}
	return "", "", errors.New("no such noun")
}

func TestNoun(t *testing.T) {
	f := &fake{parts: []*apiv1.ListResponse{
		{Columns: []string{"ID"}, Rows: []*apiv1.ListRow{{Cells: []string{"2"}}}},
		{Rows: []*apiv1.ListRow{{Cells: []string{"3"}}}, LeftOut: 5},
	}}
	socket := serveFake(t, f)
	if out, errs, err := runNoun("endpoint", "list", "--socket", socket); out != "ID\n2\n3\n" ||
		errs != "5 more; --limit 0 shows all\n" || err != nil {
		t.Errorf("%q, %q, %v", out, errs, err)
	}
	if out, _, err := runNoun("endpoint", "get", "2", "--socket", socket); out != "ID  2\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	f.parts = []*apiv1.ListResponse{{Json: []byte(`[{"id":2}]`)}, {Json: []byte(`[]`)}}
	var one struct{ ID int }
	if out, _, err := runNoun("endpoint", "get", "2", "-o", "json", "--socket",
		socket); err != nil || json.Unmarshal([]byte(out), &one) != nil || one.ID != 2 {
		t.Errorf("%q, %v", out, err)
	}
	f.parts = []*apiv1.ListResponse{{Json: []byte(`[{"id":2},{"id":3}]`)}, {Json: []byte(`[{"id":4}]`)}}
	var three []struct{ ID int }
	if out, _, err := runNoun("endpoint", "list", "-o", "json", "--socket",
		socket); err != nil || json.Unmarshal([]byte(out), &three) != nil || len(three) != 3 {
		t.Errorf("%q, %v", out, err)
	}
	f.parts = []*apiv1.ListResponse{{Json: []byte(`[]`)}}
	for _, args := range [][]string{{}, {"-o", "json"}} {
		if _, _, err := runNoun(append([]string{"endpoint", "get", "9", "--socket", socket}, args...)...); err == nil ||
			err.Error() != "there is no endpoint 9" {
			t.Errorf("%v: %v", args, err)
		}
	}
	f.err = grpcstatus.Error(codes.NotFound, "there is no table")
	if _, _, err := runNoun("flow", "list", "--run-dir", filepath.Dir(socket)); err == nil { // no myelin.sock there
		t.Error("no error")
	}
	if _, _, err := runNoun("flow", "list", "--socket", socket); err == nil || err.Error() != "there is no table" {
		t.Errorf("%v", err)
	}
}

func TestNoAnswer(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for socket, want := range map[string]string{filepath.Join(dir, "none"): "there is no such socket",
		dead: "connection refused"} {
		t.Setenv(socketVariable, socket)
		_, _, err := runNoun("node", "list")
		if err == nil || !strings.Contains(err.Error(), "no agent answers at "+socket) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q in it", err, want)
		}
		monitor := monitorCommand()
		monitor.SetArgs(nil)
		monitor.SetOut(io.Discard)
		monitor.SetErr(io.Discard)
		monitor.SilenceUsage, monitor.SilenceErrors = true, true
		if err := monitor.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("monitor: %v; want %q in it", err, want)
		}
	}
	if _, err := os.Stat(dead); err != nil {
		t.Error(err)
	}
}
