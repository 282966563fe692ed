package bench

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/kube/manifests"
	"myelin/policy"
)

// An agent that refused some of these would be faster than it should.
func TestServicesAreAccepted(t *testing.T) {
	const others = 300 // more than the last byte of an address counts
	for family, backend := range map[Family]string{IPv4: "10.0.2.2", IPv6: "fd00:10:0:2::2"} {
		t.Run("IPv"+string('0'+rune(family)), func(t *testing.T) {
			dir := t.TempDir()
			var all objects
			all.addNetperf(family, netip.MustParseAddr(backend))
			all.addOthers(family, others)
			if err := all.write(filepath.Join(dir, "all.json")); err != nil {
				t.Fatal(err)
			}
			source := read(t, dir)
			txn := source.DB.ReadTxn()
			for p := range source.Problems().All(txn) {
				t.Error(p.Error())
			}
			ips := map[netip.Addr]bool{}
			for s := range source.Tables.Services.All(txn) {
				ips[s.ClusterIPs[0]] = true
			}
			addrs := map[netip.Addr]bool{}
			for s := range source.Tables.Slices.All(txn) {
				for _, e := range s.Endpoints {
					addrs[e.Address] = true
				}
			}
			if len(ips) != others+1 || len(addrs) != 2*others+1 {
				t.Errorf("%d ClusterIPs, %d backends: want %d and %d, each an address of its own", len(ips), len(addrs),
					others+1, 2*others+1)
			}
		})
	}
}

// read has a source read a directory once.
func read(t *testing.T, dir string) *manifests.Source {
	t.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	policies, err := policy.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	source, err := manifests.New(manifests.Params{DB: db, Tables: tables, Policies: policies, Dir: dir,
		Log: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	for _, table := range []statedb.TableMeta{tables.Services, tables.Slices} {
		_, done := table.Initialized(db.ReadTxn())
		select {
		case <-done:
		case <-ctx.Done():
			t.Fatalf("table %s is not read", table.Name())
		}
	}
	return source
}

// The socket programs of a node see what runs in its control group, and nothing else.
func TestPlace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces and control groups need root")
	}
	root := cgroup2(t)
	group := filepath.Join(root, fmt.Sprintf("mybench-%d-place", os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	})
	node := Node()
	t.Cleanup(func() {
		if err := node.Teardown(context.Background()); err != nil {
			t.Error(err)
		}
	})
	path, err := node.Setup(t.Context(), IPv4)
	if err != nil {
		t.Fatal(err)
	}
	for _, inGroup := range []string{"", group} {
		at := Place{Netns: path.Client.Netns, Cgroup: inGroup}
		out, err := netperf{}.command(t.Context(), at, "sh", "-c", "cat /proc/self/cgroup; ip link show wire0").Output()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(out), filepath.Base(group)) != (inGroup != "") {
			t.Errorf("in group %q: %s", inGroup, out)
		}
	}
}

func cgroup2(t *testing.T) string {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup2" {
			return f[1]
		}
	}
	t.Fatal("no cgroup2 is mounted")
	return ""
}
