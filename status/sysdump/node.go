package sysdump

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"myelin/api"
	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/config"
	"myelin/doctor"
	"myelin/doctor/check"
	"myelin/status"
)

// Node collects from the node that the process is on.
type Node struct {
	// Agent is the API of the node's agent.
	Agent apiv1.AgentClient
	// Versions is what `myelin version` prints.
	Versions any
	// Proc and Sys are the directories /proc and /sys but in tests.
	Proc, Sys string
	// Checks are those of features, for doctor.
	Checks []check.Check
	// Rows bounds the rows of each table and each map; 0: all.
	Rows uint32
}

// width of status and doctor as text, in columns.
const width = 120

// Collect adds all that the node tells. What fails is noted in the archive.
func (n *Node) Collect(ctx context.Context, a *Archive) {
	report, err := n.status(ctx)
	if err != nil {
		a.Fail("status.json", err)
	}
	c := config.Default()
	if report != nil {
		if from, err := doctor.FromSettings(report.Settings); err == nil {
			c = from
		} else {
			a.Fail("config.json", err)
		}
	}
	// Secrets that are known must be learned before anything is written.
	n.learn(a.redactor, c)
	a.addObject("version.json", n.Versions)
	n.addStatus(a, report)
	n.addDoctor(a, report, err, c)
	if report != nil {
		n.addTables(ctx, a)
		n.addMaps(ctx, a)
	}
	n.addManifests(a, c)
	n.addKernel(a, c)
	n.addDevices(a)
	n.addPrograms(a)
	n.addTools(ctx, a)
}

func (n *Node) status(ctx context.Context) (*status.Report, error) {
	answer, err := n.Agent.Status(ctx, &apiv1.StatusRequest{})
	if err != nil {
		return nil, err
	}
	report := &status.Report{}
	if err := json.Unmarshal(answer.GetJson(), report); err != nil {
		return nil, fmt.Errorf("read the agent's status: %w", err)
	}
	return report, nil
}

// learn reads the secrets that the node has in files and in the kernel. None of them is written.
func (n *Node) learn(r *Redactor, c *config.Config) {
	for _, file := range manifests(c) {
		if data, err := os.ReadFile(file); err == nil {
			r.learnSecrets(data)
		}
	}
	r.learn(stateKeys()...)
}

func (n *Node) addStatus(a *Archive, report *status.Report) {
	if report == nil {
		return
	}
	a.addObject("status.json", report)
	a.addObject("config.json", report.Settings)
	var text bytes.Buffer
	if err := report.Render(&text, status.Style{Width: width, Verbose: true}); err != nil {
		a.Fail("status.txt", err)
	}
	a.add("status.txt", text.Bytes())
}

func (n *Node) addDoctor(a *Archive, report *status.Report, err error, c *config.Config) {
	findings := doctor.Examine(doctor.Options{Config: c, Proc: n.Proc, Sys: n.Sys, Agent: report, AgentError: err,
		Checks: n.Checks})
	a.addObject("doctor.json", findings)
	var text bytes.Buffer
	if err := doctor.Render(&text, findings, doctor.Style{Width: width}); err != nil {
		a.Fail("doctor.txt", err)
	}
	a.add("doctor.txt", text.Bytes())
}

// names are the texts of one field of a table's rows.
func (n *Node) names(ctx context.Context, table string) (names []string, err error) {
	answer, err := api.List(ctx, n.Agent, &apiv1.ListRequest{Table: table, Json: true})
	if err != nil {
		return nil, err
	}
	var rows []struct{ Name string }
	err = json.Unmarshal(answer.GetJson(), &rows)
	for _, r := range rows {
		names = append(names, r.Name)
	}
	return names, err
}

// addTables adds all tables: desired state, and what is made of the kernel's, such as drop counters, flows and metrics.
func (n *Node) addTables(ctx context.Context, a *Archive) {
	tables, err := n.names(ctx, "tables")
	if err != nil {
		a.Fail("tables", err)
	}
	for _, t := range tables {
		if t == "log" {
			n.addLog(ctx, a)
			continue
		}
		n.addTable(ctx, a, "tables/"+t+".json", t)
	}
	if !slices.Contains(tables, "endpoint-policies") { // policies are not enforced
		return
	}
	for _, id := range n.endpoints(ctx, a) {
		n.addTable(ctx, a, "policies/"+id.String()+".json", "policy-rows "+id.String())
	}
}

func (n *Node) endpoints(ctx context.Context, a *Archive) (ids []json.Number) {
	answer, err := api.List(ctx, n.Agent, &apiv1.ListRequest{Table: "endpoint-policies", Json: true})
	if err != nil {
		a.Fail("policies", err)
		return nil
	}
	var rows []struct{ Slot json.Number }
	if err := json.Unmarshal(answer.GetJson(), &rows); err != nil {
		a.Fail("policies", err)
	}
	for _, r := range rows {
		ids = append(ids, r.Slot)
	}
	return ids
}

func (n *Node) addTable(ctx context.Context, a *Archive, file, table string) {
	answer, err := api.List(ctx, n.Agent, &apiv1.ListRequest{Table: table, Json: true, Limit: n.Rows})
	if err != nil {
		a.Fail(file, err)
		return
	}
	if left := answer.GetLeftOut(); left > 0 {
		a.Fail(file, fmt.Errorf("%d more rows were left out", left))
	}
	a.add(file, answer.GetJson())
}

func (n *Node) addLog(ctx context.Context, a *Archive) {
	answer, err := api.List(ctx, n.Agent, &apiv1.ListRequest{Table: "log"})
	if err != nil {
		a.Fail("agent.log", err)
		return
	}
	var text strings.Builder
	for _, row := range answer.GetRows() {
		text.WriteString(strings.Join(row.GetCells(), " ") + "\n")
	}
	a.add("agent.log", []byte(text.String()))
}

// addMaps adds the rows of BPF maps, but for those that have none to show.
func (n *Node) addMaps(ctx context.Context, a *Archive) {
	maps, err := n.names(ctx, "maps")
	if err != nil {
		a.Fail("maps", err)
	}
	for _, m := range maps {
		if bpf.HasRows(m) {
			n.addTable(ctx, a, "maps/"+m+".json", "map "+m)
		}
	}
}

// manifests are the files that the agent reads the cluster from, if it does.
func manifests(c *config.Config) (files []string) {
	dir := c.Myelin.Manifests
	if dir == "" {
		return nil
	}
	_ = filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if ext := filepath.Ext(file); err == nil && e.Type().IsRegular() &&
			(ext == ".yaml" || ext == ".yml" || ext == ".json") {
			files = append(files, file)
		}
		return nil // what can't be read is no manifest
	})
	return files
}

func (n *Node) addManifests(a *Archive, c *config.Config) {
	for _, file := range manifests(c) {
		name, err := filepath.Rel(c.Myelin.Manifests, file)
		if err != nil {
			a.Fail("manifests", err)
			continue
		}
		if rest, ok := strings.CutSuffix(name, ".yml"); ok {
			name = rest + ".yaml"
		}
		a.AddFile("manifests/"+name, file)
	}
}
