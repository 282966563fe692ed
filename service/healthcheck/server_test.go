package healthcheck

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"myelin/cluster"
	"myelin/internal/table"
	"myelin/service"
	"myelin/service/servicetest"
)

// freePort is a port without a listener.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// Ports answer as kube-proxy's do, by both families, and go with their rows.
func TestCheckServer(t *testing.T) {
	db, tables := serveChecks(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	port := freePort(t)
	put := func(port uint16, count int) {
		txn := db.WriteTxn(tables.Checks)
		tables.Checks.Insert(txn, &service.Check{Service: cluster.Key{Namespace: "a", Name: "b"}, Port: port,
			LocalEndpoints: count, Status: reconciler.StatusPending()})
		txn.Commit()
		if err := table.WaitAll(ctx, db, tables.Checks, service.CheckStatus); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		count  int
		status string
	}{{0, "503 Service Unavailable"}, {3, "200 OK"}, {0, "503 Service Unavailable"}} {
		put(port, step.count)
		want := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": \"a\",\n\t\t\"name\": "+
			"\"b\"\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": true\n}\n", step.count)
		for _, host := range []string{"127.0.0.1", "[::1]"} {
			res, err := http.Get(fmt.Sprintf("http://%s:%d/healthz", host, port))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if res.Status != step.status || string(body) != want ||
				res.Header.Get("X-Load-Balancing-Endpoint-Weight") != fmt.Sprint(step.count) {
				t.Errorf("%d endpoints by %s: got %s %v\n%s", step.count, host, res.Status, res.Header, body)
			}
		}
	}
	put(freePort(t), 1)
	if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err != nil {
		t.Errorf("the port of before is still open: %v", err)
	} else {
		l.Close()
	}
}

// A port that is taken is the row's problem, and is tried again.
func TestCheckPortTaken(t *testing.T) {
	db, tables := serveChecks(t)
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	txn := db.WriteTxn(tables.Checks)
	tables.Checks.Insert(txn, &service.Check{Port: uint16(taken.Addr().(*net.TCPAddr).Port),
		Status: reconciler.StatusPending()})
	txn.Commit()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	servicetest.Wait(ctx, t, func(r statedb.ReadTxn) (bool, <-chan struct{}) {
		row, _, changed, _ := tables.Checks.GetWatch(r, service.CheckByService(cluster.Key{}))
		return strings.Contains(row.Status.GetError(), "address already in use"), changed
	}, db)
	taken.Close()
	if err := table.WaitAll(ctx, db, tables.Checks, service.CheckStatus); err != nil {
		t.Error(err)
	}
}

// serveChecks runs a Server over fresh tables.
func serveChecks(t *testing.T) (*statedb.DB, service.Tables) {
	t.Helper()
	db := statedb.New()
	tables, err := service.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	group, start, stop := table.Group(log)
	server := &Server{Log: log, Listen: net.Listen}
	if _, err := table.Register(log, db, group, tables.Checks, service.CheckStatus, server); err != nil {
		t.Fatal(err)
	}
	if err := start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop(context.Background())
		server.Close()
	})
	return db, tables
}
