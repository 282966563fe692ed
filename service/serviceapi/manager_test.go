package serviceapi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"

	"myelin/cluster"
	"myelin/service"
	"myelin/service/serviceapi/probe"
)

// world is a Manager together with the tables that serve its Services, as in an agent.
type world struct {
	*Manager
	db       *statedb.DB
	services *service.Services
	stop     func()
}

// start makes a world from what is in dir, and runs it.
func start(t *testing.T, dir string) *world {
	t.Helper()
	db := statedb.New()
	tables, err := cluster.NewTables(db)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	g, err := New(Params{DB: db, Tables: tables, Dir: filepath.Join(dir, "services"), Log: log, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	services, err := service.New(service.Params{DB: db, Tables: tables, Config: service.Config{CrossFamily: true},
		Node: "lb", Dir: dir, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- g.Run(ctx) }()
	go func() { ended <- services.Run(ctx) }()
	w := &world{Manager: g, db: db, services: services}
	w.stop = func() {
		cancel()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		w.stop = func() {}
	}
	t.Cleanup(func() { w.stop() })
	return w
}

func l4(text string) service.L4Addr {
	a, err := service.ParseL4(text)
	if err != nil {
		panic(err)
	}
	return a
}

// svc makes a Service of frontends and backends, the latter with a weight behind "=".
func svc(name string, frontends string, backends string) *Service {
	s := &Service{Name: name}
	for f := range strings.FieldsSeq(frontends) {
		s.Frontends = append(s.Frontends, l4(f))
	}
	for b := range strings.FieldsSeq(backends) {
		addr, weight, _ := strings.Cut(b, "=")
		w := uint16(1)
		if weight != "" {
			w = uint16(weight[0] - '0')
		}
		s.Backends = append(s.Backends, Backend{Address: netip.MustParseAddrPort(addr), Weight: w})
	}
	return s
}

// text is what the node does: a line for each frontend, with the addresses of its set.
func (w *world) text() string {
	txn := w.db.ReadTxn()
	var lines []string
	for f := range w.services.Desired.Frontends.All(txn) {
		line := f.Service.String() + " " + f.L4().String() + " " + f.Type.String()
		var set []string
		for _, r := range f.External {
			b, _, _ := w.services.Desired.Backends.Get(txn, service.BackendByID(r.ID))
			one := b.L4().String()
			if r.Weight != 1 {
				one += "=" + string('0'+rune(r.Weight))
			}
			set = append(set, one)
		}
		slices.Sort(set)
		lines = append(lines, strings.Join(append([]string{line}, set...), " "))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// becomes waits until the node does what is wanted.
func (w *world) becomes(t *testing.T, want string) {
	t.Helper()
	want = strings.Join(strings.FieldsFunc(strings.ReplaceAll(want, "\t", ""), func(r rune) bool { return r == '\n' }),
		"\n")
	got := ""
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if got = w.text(); got == want {
			return
		}
	}
	t.Errorf("got\n%s\nwant\n%s", got, want)
}

func (w *world) upsert(t *testing.T, s *Service) {
	t.Helper()
	if _, err := w.Upsert(s); err != nil {
		t.Fatal(err)
	}
}

// TestUpsert: Services of both families are created, changed and deleted, and survive a restart.
func TestUpsert(t *testing.T) {
	dir := t.TempDir()
	w := start(t, dir)
	w.upsert(t, svc("web", "192.0.2.10:80 [2001:db8::a]:80", "10.0.0.1:8080 10.0.0.2:8081=3 [fd00::1]:8080"))
	w.upsert(t, svc("dns", "192.0.2.11:53/UDP", "10.0.0.3:53"))
	w.upsert(t, svc("across", "[2001:db8::b]:80 192.0.2.12:80", "10.0.0.4:80"))
	const first = `across 192.0.2.12:80/TCP LoadBalancer 10.0.0.4:80/TCP
		across [2001:db8::b]:80/TCP LoadBalancer 10.0.0.4:80/TCP
		dns 192.0.2.11:53/UDP LoadBalancer 10.0.0.3:53/UDP
		web 192.0.2.10:80/TCP LoadBalancer 10.0.0.1:8080/TCP 10.0.0.2:8081/TCP=3
		web [2001:db8::a]:80/TCP LoadBalancer [fd00::1]:8080/TCP`
	w.becomes(t, first)
	id := func(w *world) uint32 {
		row, _, _ := w.services.Desired.Services.Get(w.db.ReadTxn(), service.ByKey(cluster.Key{Name: "web"}))
		return row.ID
	}
	number := id(w)
	w.stop()
	w = start(t, dir)
	w.becomes(t, first)
	if got := id(w); got != number {
		t.Errorf("number %d became %d", number, got)
	}
	// Other backends, another protocol, weights; one goes, and its address is free again.
	w.upsert(t, svc("web", "192.0.2.10:80", "10.0.0.2:8080"))
	w.upsert(t, svc("dns", "192.0.2.11:53/TCP", "10.0.0.3:53"))
	if err := w.Delete("across"); err != nil {
		t.Fatal(err)
	}
	w.upsert(t, svc("heir", "192.0.2.12:80", "10.0.0.4:80 10.0.0.5:80=0"))
	for name, weight := range map[string]uint16{"": 2, "web": 5} {
		if err := w.SetWeight(name, l4("10.0.0.2:8080"), weight); err != nil {
			t.Fatal(err)
		}
		w.becomes(t, strings.ReplaceAll(`dns 192.0.2.11:53/TCP LoadBalancer 10.0.0.3:53/TCP
			heir 192.0.2.12:80/TCP LoadBalancer 10.0.0.4:80/TCP
			web 192.0.2.10:80/TCP LoadBalancer 10.0.0.2:8080/TCP=N`, "N", string('0'+rune(weight))))
	}
	files, _ := filepath.Glob(filepath.Join(dir, "services", "*"))
	if len(files) != 3 {
		t.Errorf("files: %v", files)
	}
	// Options become annotations and fields that package service reads.
	s := svc("web", "192.0.2.10:80", "10.0.0.2:8080")
	s.Affinity, s.Algorithm, s.Forwarding, s.SourceDeny = time.Minute, service.Maglev, service.DSR, true
	s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	w.upsert(t, s)
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		row, _, _ := w.services.Desired.Services.Get(w.db.ReadTxn(), service.ByKey(s.key()))
		got := strings.Join(row.TableRow()[2:], "|")
		if got == "LoadBalancer|affinity=1m0s deny=[203.0.113.0/24] algorithm=maglev forwarding=dsr||api" {
			break
		}
		if time.Now().After(end) {
			t.Fatal(got)
		}
	}
}

// TestRefuse: conflicts, and Services that cannot be stored, change nothing.
func TestRefuse(t *testing.T) {
	dir := t.TempDir()
	w := start(t, dir)
	w.upsert(t, svc("web", "192.0.2.10:80", "10.0.0.1:8080"))
	const want = "web 192.0.2.10:80/TCP LoadBalancer 10.0.0.1:8080/TCP"
	w.becomes(t, want)
	if _, err := w.Upsert(svc("thief", "192.0.2.9:80 192.0.2.10:80", "")); !errors.Is(err, errTaken) ||
		err.Error() != "frontends[1]: 192.0.2.10:80/TCP is taken: it is web's" {
		t.Error(err)
	}
	for _, err := range []error{w.Delete("none"), w.SetWeight("", l4("10.0.0.1:8080/UDP"), 1),
		w.SetWeight("none", l4("10.0.0.1:8080"), 1)} {
		if !errors.Is(err, errUnknown) {
			t.Error(err)
		}
	}
	path := filepath.Join(dir, "services")
	if err := os.Rename(path, path+"-away"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Upsert(svc("web", "192.0.2.10:80", "10.0.0.2:8080")); err == nil ||
		!strings.Contains(err.Error(), "keep Service web") {
		t.Error(err)
	}
	if err := w.Delete("web"); err == nil {
		t.Error("a Service was deleted, and its file wasn't")
	}
	time.Sleep(20 * time.Millisecond)
	w.becomes(t, want)
}

// TestFiles: an invalid file is left as it is and not served. The others are.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	w := start(t, dir)
	w.upsert(t, svc("web", "192.0.2.10:80", "10.0.0.1:8080"))
	w.stop()
	good, err := os.ReadFile(filepath.Join(dir, "services", "web.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"torn.json": string(good[:len(good)/2]), "version.json": strings.Replace(string(good), `"version": 1`,
			`"version": 2`, 1),
		"other.json": string(good), "field.json": strings.Replace(strings.Replace(string(good), `"web"`, `"field"`, 1),
			`"weight"`, `"wait"`, 1),
		"bad.json": strings.Replace(strings.Replace(string(good), `"web"`, `"bad"`, 1), "192.0.2.10:80",
			"127.0.0.1:80", 1),
		"empty.json": "{}", "half.json.tmp": "{", "README": "not ours",
	} {
		if err := os.WriteFile(filepath.Join(dir, "services", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, bad, err := (store{filepath.Join(dir, "services")}).load()
	if err != nil || len(all) != 1 || len(bad) != 6 {
		t.Errorf("%d Services, %v, %v", len(all), bad, err)
	}
	start(t, dir).becomes(t, "web 192.0.2.10:80/TCP LoadBalancer 10.0.0.1:8080/TCP")
	if left, _ := filepath.Glob(filepath.Join(dir, "services", "*")); len(left) != 8 {
		t.Errorf("files: %v", left)
	}
}

// TestCheck has a wrong value of each field.
func TestCheck(t *testing.T) {
	many := func(n int) (b []Backend) {
		for a := netip.MustParseAddr("10.1.0.0"); len(b) < n; a = a.Next() {
			b = append(b, Backend{Address: netip.AddrPortFrom(a, 80)})
		}
		return b
	}
	for _, c := range []struct {
		change func(*Service)
		want   string
	}{
		{func(*Service) {}, ""},
		{func(s *Service) { s.Backends = many(maxBackends) }, ""},
		{func(s *Service) { s.Name = "Web" }, "name: "},
		{func(s *Service) { s.Name = "../web" }, "name: "},
		{func(s *Service) { s.Name = "" }, "name: "},
		{func(s *Service) { s.Frontends = nil }, "frontends: 0 are not in 1..64"},
		{func(s *Service) { s.Frontends = append(s.Frontends, l4("192.0.2.11:81")) },
			"frontends[1]: 192.0.2.11:81/TCP: a Service has one port and protocol"},
		{func(s *Service) { s.Frontends = append(s.Frontends, l4("192.0.2.11:80/UDP")) }, "frontends[1]: "},
		{func(s *Service) { s.Frontends = append(s.Frontends, s.Frontends[0]) },
			"frontends[1]: 192.0.2.10:80/TCP is there twice"},
		{func(s *Service) { s.Frontends[0] = l4("[ff02::1]:80") }, "frontends[0]: ff02::1 is a multicast address"},
		{func(s *Service) { s.Frontends[0] = l4("0.0.0.0:80") }, "frontends[0]: 0.0.0.0 is the unspecified address"},
		{func(s *Service) { s.Backends = many(maxBackends + 1) }, "backends: 10001 are too many"},
		{func(s *Service) { s.Backends = append(s.Backends, s.Backends[0]) },
			"backends[1].address: 10.0.0.1:8080 is there twice"},
		{func(s *Service) { s.Backends[0].Address = netip.AddrPort{} }, "backends[0].address: must be"},
		{func(s *Service) { s.Backends[0].Address = s.Frontends[0].AddrPort },
			"backends[0].address: 192.0.2.10:80 is a frontend"},
		{func(s *Service) { s.Affinity = 25 * time.Hour }, "affinity_seconds: "},
		{func(s *Service) { s.Affinity = time.Millisecond }, "affinity_seconds: "},
		{func(s *Service) { s.Algorithm = "best" }, "algorithm: "},
		{func(s *Service) { s.Forwarding = "nat" }, "mode: "},
		{func(s *Service) { s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")} },
			"source_ranges[0]: 10.0.0.1/8 has bits set after the prefix: did you mean 10.0.0.0/8?"},
		{func(s *Service) { s.SourceDeny = true }, "source_deny: "},
		{func(s *Service) { s.Check = &probe.Check{} }, "health_check.kind: "},
	} {
		s := svc("web", "192.0.2.10:80", "10.0.0.1:8080")
		c.change(s)
		err := check(s)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// TestFirstAnswers: after a restart, backends are checked before the tables are initialized.
func TestFirstAnswers(t *testing.T) {
	backendHosts(t)
	dir := t.TempDir()
	s := svc("web", "192.0.2.10:80", "10.9.0.1:1") // no socket listens there
	c := probe.Check{Kind: probe.TCP}.WithDefaults()
	s.Check = &c
	w := start(t, dir)
	w.upsert(t, s)
	w.stop()
	w = start(t, dir)
	for {
		txn := w.db.ReadTxn()
		known, changed := w.services.Desired.Backends.Initialized(txn)
		if !known {
			<-changed
			continue
		}
		b, _, ok := w.services.Desired.Backends.Get(txn, service.BackendByAddress(l4("10.9.0.1:1")))
		if !ok || b.State != service.Quarantined {
			t.Errorf("there is one: %t, and it is %s", ok, b.State)
		}
		return
	}
}

// TestHealth: real backends that end and come back. Failing ones get no new flows, unless all fail.
func TestHealth(t *testing.T) {
	for _, host := range backendHosts(t) {
		t.Run(host, func(t *testing.T) { testHealth(t, host) })
	}
}

func testHealth(t *testing.T, host string) {
	w := start(t, t.TempDir())
	listen := func(at string) net.Listener {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	a, b := listen(net.JoinHostPort(host, "0")), listen(net.JoinHostPort(host, "0"))
	s := svc("web", "192.0.2.10:80 [2001:db8::a]:80", a.Addr().String()+" "+b.Addr().String())
	check := probe.Check{Kind: probe.TCP, Interval: 100 * time.Millisecond, Rise: 2, Fall: 2}.WithDefaults()
	s.Check = &check
	w.upsert(t, s)
	sets := func(backends ...net.Listener) string {
		var list []string
		for _, l := range backends {
			list = append(list, l.Addr().String()+"/TCP")
		}
		slices.Sort(list)
		set := strings.Join(list, " ")
		return "web 192.0.2.10:80/TCP LoadBalancer " + set + "\nweb [2001:db8::a]:80/TCP LoadBalancer " + set
	}
	w.becomes(t, sets(a, b))
	waitHealth := func(l net.Listener, want string) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(2 * time.Millisecond) {
			got := "none"
			for p := range w.Probes.List(w.db.ReadTxn(), ProbesByBackend(l4(l.Addr().String()))) {
				got = p.Text()
			}
			if got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
	}
	waitHealth(a, "passing")
	waitHealth(b, "passing")
	a.Close()
	w.becomes(t, sets(b))
	waitHealth(a, "failing: connect: connection refused")
	b.Close()
	w.becomes(t, sets(a, b))
	listen(b.Addr().String())
	w.becomes(t, sets(b))
	// A Service without a check forgets what it found.
	next := *s
	next.Check = nil
	w.upsert(t, &next)
	w.becomes(t, sets(a, b))
	waitHealth(a, "none")
}
