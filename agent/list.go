package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"myelin/agent/feature"
	apiv1 "myelin/api/v1"
	"myelin/bpf"
)

// answers implements apiv1.AgentServer.
type answers struct {
	apiv1.UnimplementedAgentServer
	agent *agent
	// stopping is closed when the agent stops: streams must end then.
	stopping <-chan struct{}
}

// tableRow is what every table's rows can.
type tableRow = feature.Row

// wideRow is a row that has further columns for -o wide.
type wideRow interface {
	WideHeader() []string
	WideRow() []string
}

// wideColumns returns the header with the further columns of the list's rows, and the cells of a row with them. Whether
// there are any is known from the first row.
func wideColumns(v *feature.List) (header []string, cells func(tableRow) []string, err error) {
	header, cells = v.Header, tableRow.TableRow
	err = v.Each(func(row tableRow) bool {
		if more, ok := row.(wideRow); ok {
			header = slices.Concat(v.Header, more.WideHeader())
			cells = func(row tableRow) []string { return slices.Concat(row.TableRow(), row.(wideRow).WideRow()) }
		}
		return false
	})
	return header, cells, err
}

// List implements apiv1.AgentServer.
func (s *answers) List(r *apiv1.ListRequest, stream apiv1.Agent_ListServer) error {
	if err := s.has(stream.Context(), r.GetTable()); err != nil {
		return err
	}
	v, err := s.view(r.GetTable())
	if err != nil {
		return err
	}
	header, cellsOf := v.Header, tableRow.TableRow
	if r.GetWide() {
		if header, cellsOf, err = wideColumns(v); err != nil {
			return status.Errorf(codes.Internal, "list %s: %v", r.GetTable(), err)
		}
	}
	match, err := matcher(header, r.GetFilters())
	if err != nil {
		return err
	}
	p := &part{stream: stream, json: r.GetJson(), next: &apiv1.ListResponse{Columns: header}}
	err = v.Each(func(row tableRow) bool {
		cells := cellsOf(row)
		switch {
		case !match(cells):
		case r.GetLimit() > 0 && p.total == int(r.GetLimit()):
			p.leftOut++
		default:
			p.add(row, cells)
		}
		return p.err == nil && stream.Context().Err() == nil
	})
	if p.err != nil { // to send, which has a status
		return p.err
	}
	if err != nil {
		return status.Errorf(codes.Internal, "list %s: %v", r.GetTable(), err)
	}
	p.next.LeftOut = p.leftOut
	return p.send()
}

// partRows and partBytes are how much a part has: long tables must not be in
// memory as a whole, and rows of Services with many backends are long; a client
// takes 4 MiB.
const (
	partRows  = 512
	partBytes = 1 << 20
)

// part is what is sent next.
type part struct {
	stream  apiv1.Agent_ListServer
	json    bool
	next    *apiv1.ListResponse
	array   jsonArray
	rows    int // in this part
	bytes   int // in this part, without what frames them
	total   int // in all parts
	leftOut uint64
	err     error
}

func (p *part) add(row tableRow, cells []string) {
	if p.json {
		p.err = p.array.add(row)
		p.bytes = p.array.Len()
	} else {
		p.next.Rows = append(p.next.Rows, &apiv1.ListRow{Cells: cells})
		for _, c := range cells {
			p.bytes += len(c)
		}
	}
	p.rows++
	p.total++
	if p.err == nil && (p.rows == partRows || p.bytes >= partBytes) {
		p.err = p.send()
	}
}

func (p *part) send() error {
	if p.json {
		p.next.Json = p.array.close()
	}
	err := p.stream.Send(p.next)
	p.next, p.array, p.rows, p.bytes = &apiv1.ListResponse{}, jsonArray{}, 0, 0
	return err
}

// jsonArray grows by objects.
type jsonArray struct {
	bytes.Buffer
	n int
}

func (a *jsonArray) add(row any) error {
	object, err := json.Marshal(row)
	if err != nil {
		return err
	}
	a.WriteByte("[,"[min(a.n, 1)])
	a.Write(object)
	a.n++
	return nil
}

func (a *jsonArray) close() []byte {
	if a.n == 0 {
		return []byte("[]")
	}
	a.WriteByte(']')
	return a.Bytes()
}

// matcher reports whether cells fit all filters.
func matcher(header []string, filters []*apiv1.ListFilter) (func(cells []string) bool, error) {
	for _, f := range filters {
		if f.GetColumn() != "" && column(header, f.GetColumn()) < 0 {
			return nil, status.Errorf(codes.InvalidArgument, "there is no column %q: the columns are %s", f.GetColumn(),
				strings.Join(header, ", "))
		}
	}
	return func(cells []string) bool {
		for _, f := range filters {
			of := cells
			if i := column(header, f.GetColumn()); i >= 0 {
				of = cells[i : i+1]
			}
			if !slices.ContainsFunc(of, func(cell string) bool { return fits(cell, f) }) {
				return false
			}
		}
		return true
	}, nil
}

func column(header []string, name string) int {
	return slices.IndexFunc(header, func(h string) bool { return strings.EqualFold(h, name) })
}

func fits(cell string, f *apiv1.ListFilter) bool {
	if f.GetPart() {
		return strings.Contains(strings.ToLower(cell), strings.ToLower(f.GetValue()))
	}
	return strings.EqualFold(cell, f.GetValue())
}

// has waits for what a table is made of, or refuses it with what the agent's
// start waits for: a table that is not filled yet must not look empty.
func (s *answers) has(ctx context.Context, table string) error {
	txn := s.agent.DB.ReadTxn()
	if meta := s.agent.DB.GetTable(txn, table); meta != nil {
		if filled, _ := meta.Initialized(txn); filled {
			return nil
		}
	}
	if slices.Contains([]string{"tables", "log", "metrics"}, table) { // an agent that is starting has them
		return nil
	}
	if err := s.agent.progress.wait(ctx, s.stopping); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	return nil
}

// view finds a table by name.
func (s *answers) view(name string) (*feature.List, error) {
	if err := s.agent.refuse(name); err != nil {
		return nil, err
	}
	if v, ok := s.agent.lists()[name]; ok {
		return &v, nil
	}
	if of, ok := strings.CutPrefix(name, "map "); ok {
		return &feature.List{Header: (*bpf.DumpRow)(nil).TableHeader(), Each: func(yield func(tableRow) bool) error {
			return s.agent.Datapath.Dump(of, func(r *bpf.DumpRow) bool { return yield(r) })
		}}, nil
	}
	if of, ok := strings.CutPrefix(name, policyRowsTable+" "); ok {
		return s.agent.policies.policyRows(of)
	}
	txn := s.agent.DB.ReadTxn()
	meta := s.agent.DB.GetTable(txn, name)
	if meta == nil {
		return nil, status.Errorf(codes.NotFound, "there is no table %q: there are %s", name,
			strings.Join(s.agent.tableNames(), ", "))
	}
	table := statedb.AnyTable{Meta: meta}
	return &feature.List{Header: table.TableHeader(), Each: func(yield func(tableRow) bool) error {
		for row := range table.All(txn) {
			if r, ok := row.(tableRow); !ok {
				return fmt.Errorf("rows of %T are not made to be shown", row)
			} else if !yield(r) {
				return nil
			}
		}
		return nil
	}}, nil
}

// tableNames are those that List takes, but for the maps'.
func (a *agent) tableNames() []string {
	names := slices.Collect(maps.Keys(a.lists()))
	for _, t := range a.DB.GetTables(a.DB.ReadTxn()) {
		names = append(names, t.Name())
	}
	slices.Sort(names)
	return names
}

// lists are the tables that are made on request. Those of features have rows
// only when the agent is ready (see has).
func (a *agent) lists() map[string]feature.List {
	lists := a.processLists()
	for _, f := range a.list {
		if f.Lists != nil {
			maps.Copy(lists, f.Lists())
		}
	}
	return lists
}

// refuse returns why this node does not have a table, nil for any other table.
func (a *agent) refuse(table string) error {
	for _, f := range a.list {
		if f.Refuse == nil {
			continue
		}
		if err := f.Refuse(table); err != nil {
			return err
		}
	}
	return nil
}

// tableCount is a row of the table of tables.
type tableCount struct {
	Name string `json:"name"`
	Rows *int   `json:"rows,omitempty"` // nil for a table that is made when it is asked for
}

func (*tableCount) TableHeader() []string { return []string{"Table", "Rows"} }

func (t *tableCount) TableRow() []string {
	if t.Rows == nil {
		return []string{t.Name, ""}
	}
	return []string{t.Name, strconv.Itoa(*t.Rows)}
}

// eachTable calls yield for each table that List has on this node, by name.
func (a *agent) eachTable(yield func(tableRow) bool) error {
	txn := a.DB.ReadTxn()
	for _, name := range a.tableNames() {
		if a.refuse(name) != nil {
			continue
		}
		row := &tableCount{Name: name}
		if meta := a.DB.GetTable(txn, name); meta != nil {
			n := meta.NumObjects(txn)
			row.Rows = &n
		}
		if !yield(row) {
			break
		}
	}
	return nil
}

// Status implements apiv1.AgentServer.
func (s *answers) Status(context.Context, *apiv1.StatusRequest) (*apiv1.StatusResponse, error) {
	report, err := s.agent.status()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "collect status: %v", err)
	}
	data, err := json.Marshal(report)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "write status: %v", err)
	}
	return &apiv1.StatusResponse{Json: data}, nil
}
