package agent

import (
	"bytes"
	"cmp"
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

	apiv1 "myelin/api/v1"
	"myelin/bpf"
	"myelin/drop"
	"myelin/flow"
)

// answers implements apiv1.AgentServer.
type answers struct {
	apiv1.UnimplementedAgentServer
	agent *Agent
	// stopping is closed when the agent stops: streams must end then.
	stopping <-chan struct{}
}

// tableRow is what every table's rows can.
type tableRow = statedb.TableWritable

// wideRow is a row that has further columns for -o wide.
type wideRow interface {
	WideHeader() []string
	WideRow() []string
}

// view is a table that List can show.
type view struct {
	header []string
	each   func(func(tableRow) bool) error
}

// wide is the header with the further columns of the view's rows, and the cells of a row with them. The first row tells whether there are any.
func (v *view) wide() (header []string, cells func(tableRow) []string, err error) {
	header, cells = v.header, tableRow.TableRow
	err = v.each(func(row tableRow) bool {
		if more, ok := row.(wideRow); ok {
			header = slices.Concat(v.header, more.WideHeader())
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
	header, cellsOf := v.header, tableRow.TableRow
	if r.GetWide() {
		if header, cellsOf, err = v.wide(); err != nil {
			return status.Errorf(codes.Internal, "list %s: %v", r.GetTable(), err)
		}
	}
	match, err := matcher(header, r.GetFilters())
	if err != nil {
		return err
	}
	p := &part{stream: stream, json: r.GetJson(), next: &apiv1.ListResponse{Columns: header}}
	err = v.each(func(row tableRow) bool {
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
			return nil, status.Errorf(codes.InvalidArgument, "there is no column %q: the columns are %s", f.GetColumn(), strings.Join(header, ", "))
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
	txn := s.agent.db.ReadTxn()
	if meta := s.agent.db.GetTable(txn, table); meta != nil {
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
func (s *answers) view(name string) (*view, error) {
	if err := cmp.Or(s.agent.serviceOff(name), s.agent.policyOff(name)); err != nil {
		return nil, err
	}
	if v, ok := s.agent.madeViews()[name]; ok {
		return &v, nil
	}
	if of, ok := strings.CutPrefix(name, "map "); ok {
		return &view{header: (*bpf.DumpRow)(nil).TableHeader(), each: func(yield func(tableRow) bool) error {
			return s.agent.datapath.Dump(of, func(r *bpf.DumpRow) bool { return yield(r) })
		}}, nil
	}
	if of, ok := strings.CutPrefix(name, policyRowsTable+" "); ok {
		return s.agent.policyRows(of)
	}
	txn := s.agent.db.ReadTxn()
	meta := s.agent.db.GetTable(txn, name)
	if meta == nil {
		return nil, status.Errorf(codes.NotFound, "there is no table %q: there are %s", name, strings.Join(s.agent.tableNames(), ", "))
	}
	table := statedb.AnyTable{Meta: meta}
	return &view{header: table.TableHeader(), each: func(yield func(tableRow) bool) error {
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
func (a *Agent) tableNames() []string {
	names := slices.Collect(maps.Keys(a.madeViews()))
	for _, t := range a.db.GetTables(a.db.ReadTxn()) {
		names = append(names, t.Name())
	}
	slices.Sort(names)
	return names
}

// madeViews are tables that are made when somebody asks.
func (a *Agent) madeViews() map[string]view {
	views := a.kernelViews()
	maps.Copy(views, a.serviceViews())
	maps.Copy(views, a.policyViews())
	maps.Copy(views, a.processViews())
	views["endpoint-details"] = view{(*endpointDetails)(nil).TableHeader(), a.eachEndpoint}
	return views
}

// kernelViews are tables whose rows the kernel keeps.
func (a *Agent) kernelViews() map[string]view {
	return map[string]view{
		"drops":        {(*drop.Row)(nil).TableHeader(), a.eachCounter},
		"policy-drops": {(*policyDenial)(nil).TableHeader(), a.eachDenial},
		"flows":        {(*flow.Flow)(nil).TableHeader(), a.eachFlow},
		"paths":        {(*flow.Path)(nil).TableHeader(), a.eachPath},
		"maps":         {(*bpf.Usage)(nil).TableHeader(), a.eachMap},
		"tables":       {(*tableCount)(nil).TableHeader(), a.eachTable},
	}
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
func (a *Agent) eachTable(yield func(tableRow) bool) error {
	txn := a.db.ReadTxn()
	for _, name := range a.tableNames() {
		if a.serviceOff(name) != nil || a.policyOff(name) != nil {
			continue
		}
		row := &tableCount{Name: name}
		if meta := a.db.GetTable(txn, name); meta != nil {
			n := meta.NumObjects(txn)
			row.Rows = &n
		}
		if !yield(row) {
			break
		}
	}
	return nil
}

func (a *Agent) eachCounter(yield func(tableRow) bool) error {
	list, err := drop.Counters{Cpus: a.datapath.Cpus}.Read()
	for _, c := range list {
		if !yield(c.Row()) {
			break
		}
	}
	return err
}

func (a *Agent) eachMap(yield func(tableRow) bool) error {
	list, err := a.usages.Read()
	for _, u := range list {
		if !yield(u) {
			break
		}
	}
	return err
}

func (a *Agent) eachFlow(yield func(tableRow) bool) error {
	clock, err := a.clock()
	if err != nil {
		return err
	}
	return flow.List(a.datapath, a.names(), clock, func(f *flow.Flow) bool { return yield(f) })
}

func (a *Agent) eachPath(yield func(tableRow) bool) error {
	clock, err := a.clock()
	if err != nil {
		return err
	}
	return flow.Paths(a.datapath, a.names(), clock, func(p *flow.Path) bool { return yield(p) })
}

func (a *Agent) clock() (flow.Clock, error) {
	settings, err := a.datapath.Settings()
	if err != nil {
		return flow.Clock{}, err
	}
	return flow.ReadClock(settings.Hz)
}

// Status implements apiv1.AgentServer.
func (s *answers) Status(context.Context, *apiv1.StatusRequest) (*apiv1.StatusResponse, error) {
	report, err := s.agent.Status()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "collect status: %v", err)
	}
	data, err := json.Marshal(report)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "write status: %v", err)
	}
	return &apiv1.StatusResponse{Json: data}, nil
}
