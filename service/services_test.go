package service_test

import (
	"fmt"
	"iter"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"
	"github.com/rogpeppe/go-internal/txtar"

	"myelin/cluster"
	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/servicetest"
)

// dump is the desired state as text, one line for each row.
func dump(w *servicetest.Cluster) string {
	r := w.DB.ReadTxn()
	var lines []string
	add := func(kind string, row []string) {
		lines = append(lines, strings.Join(strings.Fields(kind+" "+strings.Join(row, " ")), " "))
	}
	for s := range w.Desired.Services.All(r) {
		add("service", s.TableRow())
	}
	for f := range w.Desired.Frontends.All(r) {
		add("frontend", f.TableRow())
	}
	for b := range w.Desired.Backends.All(r) {
		add("backend", b.TableRow())
	}
	for c := range w.Desired.Checks.All(r) {
		add("check", c.TableRow())
	}
	return strings.Join(lines, "\n")
}

// written counts the rows that differ from those of an earlier snapshot.
func written(w *servicetest.Cluster, before statedb.ReadTxn) string {
	r := w.DB.ReadTxn()
	return fmt.Sprintf("wrote %d services %d frontends %d backends",
		differ(w.Desired.Services.All(before), w.Desired.Services.All(r)),
		differ(w.Desired.Frontends.All(before), w.Desired.Frontends.All(r)),
		differ(w.Desired.Backends.All(before), w.Desired.Backends.All(r)))
}

func differ[R comparable](before, after iter.Seq2[R, statedb.Revision]) int {
	rows, n := map[R]bool{}, 0
	for row := range before {
		rows[row] = true
	}
	for row := range after {
		if !rows[row] {
			n++
		}
		delete(rows, row)
	}
	return max(n, len(rows))
}

// TestSteps reads clusters from testdata: N/objects are those of step N, N/want is the desired state, and from the
// second step on the number of rows written. Each runs for both families.
func TestSteps(t *testing.T) { clustertest.Archives(t, steps) }

func steps(t *testing.T, archive *txtar.Archive, v6 bool) {
	t.Helper()
	w := servicetest.New(t, servicetest.ConfigOf(t, archive), t.TempDir())
	for _, f := range archive.Files {
		step, name, _ := strings.Cut(f.Name, "/")
		if name != "objects" {
			continue
		}
		before := w.DB.ReadTxn()
		w.Set(t, clustertest.Parse(t, clustertest.Named(string(f.Data), v6, true)))
		got := dump(w)
		if step != "1" {
			got = strings.TrimSpace(got + "\n" + written(w, before))
		}
		if want := clustertest.Wanted(archive, step, v6); servicetest.Sorted(got) != servicetest.Sorted(want) {
			t.Fatalf("step %s: got\n%s\nwant\n%s", step, got, want)
		}
	}
}

// Equal compares every field except the status. Otherwise a change of it would not be written.
func TestEveryFieldCounts(t *testing.T) {
	everyFieldCounts(t, (*service.Service).Equal)
	everyFieldCounts(t, (*service.Frontend).Equal)
}

func everyFieldCounts[T any](t *testing.T, equal func(a, b *T) bool) {
	t.Helper()
	for i := range reflect.TypeFor[T]().NumField() {
		var changed, base T
		field := reflect.ValueOf(&changed).Elem().Field(i)
		name := reflect.TypeFor[T]().Field(i).Name
		switch field.Interface().(type) {
		case reconciler.Status:
			field.Set(reflect.ValueOf(reconciler.StatusDone()))
		case netip.AddrPort:
			field.Set(reflect.ValueOf(netip.MustParseAddrPort("[::]:1")))
		case cluster.Key:
			field.Set(reflect.ValueOf(cluster.Key{Name: "x"}))
		default:
			switch field.Kind() {
			case reflect.String:
				field.SetString("x")
			case reflect.Bool:
				field.SetBool(true)
			case reflect.Int, reflect.Int64:
				field.SetInt(1)
			case reflect.Uint8, reflect.Uint16, reflect.Uint32:
				field.SetUint(1)
			case reflect.Slice:
				field.Set(reflect.MakeSlice(field.Type(), 1, 1))
			default:
				t.Fatalf("%T.%s: no value of %s to try", base, name, field.Type())
			}
		}
		if equal(&changed, &base) != (name == "Status") || !equal(&changed, &changed) {
			t.Errorf("%T: a change of %s is not classified right", base, name)
		}
	}
}
