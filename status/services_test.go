package status

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"myelin/bpf"
	"myelin/service"
)

// services is a node that serves Services to sockets, two of which ask too
// much.
func services(t *testing.T) Facts {
	f := good(t)
	f.Config.SocketLB.Enabled = true
	f.Settings.SetRetval, f.Settings.BindProtection = 1, 1
	f.Services = CountServices([]*service.Service{
		{Namespace: "demo", Name: "b",
			Problems: []string{"spec.ports[0].nodePort: 99 is not in nodePort.range 30000..32767",
				"frontend 10.96.0.1:80/TCP: demo/a has it"}},
		{Namespace: "demo", Name: "a"},
		{Namespace: "demo", Name: "aa",
			Problems: []string{`metadata.annotations[service.cilium.io/node]: "?" is no name`}},
	}, 5, 9)
	f.Services.Attached = true
	return f
}

func TestServices(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Facts)
		state  State
		want   string
	}{
		"off": {func(f *Facts) { f.Config.SocketLB.Enabled, f.Services = false, Services{} }, Off, "off"},
		"on":  {func(f *Facts) { f.Services.Problems = nil }, OK, "sockets of pods and host, 5 frontends, 9 backends"},
		"one": {func(f *Facts) { f.Services = Services{Attached: true, Frontends: 1, Backends: 1} }, OK,
			"sockets of pods and host, 1 frontend, 1 backend"},
		"of the host": {
			func(f *Facts) {
				f.Services.Problems, f.Config.SocketLB.HostNamespaceOnly, f.Settings.SocketHostOnly = nil, true, 1
			}, OK, "sockets of the host, 5 frontends, 9 backends",
		},
		"of the host, old kernel": {
			func(f *Facts) { f.Services.Problems, f.Config.SocketLB.HostNamespaceOnly = nil, true }, Fallback,
			"sockets of pods and host, 5 frontends, 9 backends\nthe kernel doesn't tell network namespaces apart " +
				"(5.14 or later does): sockets of pods are translated too",
		},
		"errors": {
			func(f *Facts) { f.Services.Problems, f.Settings.SetRetval = nil, 0 }, Fallback,
			"sockets of pods and host, 5 frontends, 9 backends\nthe kernel lets no program choose an error (5.18 or " +
				"later does): refused connections see EPERM",
		},
		"not attached": {
			func(f *Facts) { f.Services = Services{Why: "find cgroup2: none", Frontends: 1} }, Broken,
			"not attached, 1 frontend, 0 backends\nfind cgroup2: none",
		},
		"not attached, with problems": {
			func(f *Facts) {
				f.Services.Attached, f.Services.Why, f.Services.Problems = false, "no", []string{"demo/a: x"}
			}, Broken,
			"not attached, 5 frontends, 9 backends\nno\ndemo/a: x",
		},
		"problems": {
			func(f *Facts) {
				f.Services.Problems, f.Services.ProblemCount = []string{"a", "b", "c", "d"}, 40
			}, Fallback, "sockets of pods and host, 5 frontends, 9 backends\na\nb\nc\n… and 37 more (--verbose)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := services(t)
			c.change(&f)
			x := Explain(f).Feature("Services (socket)")
			if got := strings.Join(append([]string{x.Chosen}, x.Problems...), "\n"); x.State != c.state ||
				got != c.want {
				t.Errorf("got %s\n%s\nwant %s\n%s", x.State, got, c.state, c.want)
			}
		})
	}
}

// packets is a node that translates packets, too.
func packets(t *testing.T) Facts {
	f := services(t)
	f.Config.KubeProxyReplacement, f.Config.NodePort.Enabled, f.Settings.Services = true, true, 1
	f.Services.Problems, f.Services.ProblemCount = nil, 0
	f.Maps = append(f.Maps, &bpf.Usage{Name: "nat_entries", Type: "LRUHash", Entries: 12, Max: 100})
	return f
}

func TestPackets(t *testing.T) {
	const chosen = "SNAT, random; to other nodes behind [eth0 192.168.9.1 fd00:9::1] ports 20000-29999; node ports " +
		"30000-32767; 12 flows"
	for name, c := range map[string]struct {
		change func(*Facts)
		state  State
		want   string
	}{
		"on": {func(*Facts) {}, OK, chosen},
		"some addresses": {
			func(f *Facts) {
				f.Config.NodePort.Addresses = []netip.Prefix{netip.MustParsePrefix("192.168.9.0/24")}
			}, OK,
			strings.Replace(chosen, "32767", "32767 on 192.168.9.0/24", 1),
		},
		"off": {func(f *Facts) { f.Settings.Services = 0 }, Off, "off"},
		"tunnel": {
			func(f *Facts) { f.Config.RoutingMode, f.Config.LoadBalancer.Algorithm = "tunnel", "maglev" }, OK,
			"SNAT, maglev; to other nodes behind the gateway's address ports 20000-29999; node ports " +
				"30000-32767; 12 flows",
		},
		"direct": {
			func(f *Facts) { f.Config.LoadBalancer.Mode, f.Config.LoadBalancer.DSRDispatch = "dsr", "ipip" }, OK,
			strings.Replace(chosen, "SNAT", "DSR", 1),
		},
		"health checks": {
			func(f *Facts) { f.Services.HealthChecks = HealthChecks{Backends: 3, Failing: 1, ByDSR: 2} }, OK,
			chosen + "; health checks of 3 backends, 2 by DSR, 1 failing",
		},
		"a direct health check": {func(f *Facts) { f.Services.HealthChecks.Backends = 1 }, OK,
			chosen + "; health checks of 1 backend"},
		"QUIC": {func(f *Facts) { f.Settings.Quic = 1 }, OK,
			strings.Replace(chosen, "32767", "32767; QUIC connection IDs", 1)},
		"no address": {
			func(f *Facts) { f.Wires[0].IPv6 = netip.Addr{} }, Fallback,
			strings.Replace(chosen, " fd00:9::1", "", 1) + "\neth0 has no IPv6 address for clients of Services",
		},
		"problems, told once": {func(f *Facts) { f.Services.Problems = []string{"demo/a: x"} }, OK, chosen},
		"problems": {
			func(f *Facts) { f.Services.Problems, f.Config.SocketLB.Enabled = []string{"demo/a: x"}, false }, Fallback,
			chosen + "\ndemo/a: x",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := packets(t)
			c.change(&f)
			x := Explain(f).Feature("Services (packet)")
			if got := strings.Join(append([]string{x.Chosen}, x.Problems...), "\n"); x.State != c.state ||
				got != c.want {
				t.Errorf("got %s\n%s\nwant %s\n%s", x.State, got, c.state, c.want)
			}
		})
	}
}

// TestServiceMaps: a map that Services fill says how to make it larger.
func TestServiceMaps(t *testing.T) {
	for entries, want := range map[int]struct {
		state State
		text  string
	}{
		10:  {OK, ""},
		95:  {Fallback, "maglev_tables is 95 % full; raise bpf.lbMapMax"},
		100: {Broken, "maglev_tables is full: new rows are refused; raise bpf.lbMapMax"},
	} {
		f := services(t)
		f.Maps = append(f.Maps, &bpf.Usage{Name: "maglev_tables", Type: "Hash", Entries: entries, Max: 100})
		x := Explain(f).Feature("BPF Maps")
		if got := strings.Join(x.Problems, "\n"); x.State != want.state || got != want.text {
			t.Errorf("%d of 100: got %s %q, want %s %q", entries, x.State, got, want.state, want.text)
		}
	}
}

func TestCountServices(t *testing.T) {
	var rows []*service.Service
	for i := range maxErrors + 5 {
		rows = append(rows, &service.Service{Namespace: "demo", Name: fmt.Sprintf("s%02d", i),
			Problems: []string{"x: y"}})
	}
	slices.Reverse(rows)
	got := CountServices(rows, 1, 2)
	if got.Services != maxErrors+5 || got.Frontends != 1 || got.Backends != 2 || got.ProblemCount != maxErrors+5 ||
		len(got.Problems) != maxErrors || got.Problems[0] != "demo/s00: x: y" {
		t.Errorf("%+v", got)
	}
}
