package service_test

import (
	"net/netip"
	"slices"
	"testing"

	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/servicetest"
)

func TestServerID(t *testing.T) {
	for _, c := range []struct {
		given, addr string
		octets      uint8
		want        uint64
		err         string
	}{
		{"", "10.1.2.3", 4, 0x0a010203, ""},
		{"", "10.1.2.3", 1, 3, ""},
		{"", "10.1.2.3", 8, 0x0000ffff0a010203, ""},
		{"", "fd00:1::a:b", 4, 0x000a000b, ""},
		{"", "2001:db8::1:2:3:4", 8, 0x0001000200030004, ""},
		{"00ff", "10.1.2.3", 2, 0xff, ""},
		{"ffffffffffffffff", "10.1.2.3", 8, 1<<64 - 1, ""},
		{"ff", "10.1.2.3", 2, 0, `"ff" is not 2 octets in hexadecimal digits`},
		{"00fg", "10.1.2.3", 2, 0, `"00fg" is not 2 octets in hexadecimal digits`},
		{"+0ff", "10.1.2.3", 2, 0, `"+0ff" is not 2 octets in hexadecimal digits`},
	} {
		got, err := service.ServerID(c.given, netip.MustParseAddr(c.addr), c.octets)
		if text := errorText(err); got != c.want || text != c.err {
			t.Errorf("%q %s, %d octets: %#x, %q; want %#x, %q", c.given, c.addr, c.octets, got, text, c.want, c.err)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Backends are named in every state; without the configuration, none is.
func TestServers(t *testing.T) {
	objects := clustertest.Parse(t, `
kind: Service
metadata: {name: quic, annotations: {service.myelin.io/quic-server-id-length: "2"}}
spec: {clusterIP: 10.96.0.1, internalTrafficPolicy: Local, ports: [{port: 443, protocol: UDP}]}
---
kind: EndpointSlice
metadata: {name: quic-a, labels: {kubernetes.io/service-name: quic}, annotations: {service.cilium.io/weight: "0"}}
addressType: IPv4
ports: [{port: 8443, protocol: UDP}]
endpoints: [{addresses: [10.0.1.1]}]
---
kind: EndpointSlice
metadata: {name: quic-b, labels: {kubernetes.io/service-name: quic}}
addressType: IPv4
ports: [{port: 8443, protocol: UDP}]
endpoints:
- {addresses: [10.0.1.2], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.0.1.3]}
`)
	for _, on := range []bool{true, false} {
		w := servicetest.New(t, service.Config{QUIC: on}, t.TempDir())
		w.Set(t, objects)
		f, _, ok := w.Desired.Frontends.Get(w.DB.ReadTxn(),
			service.FrontendByAddress(service.L4(netip.MustParseAddr("10.96.0.1"), 443, service.UDP)))
		if !ok {
			t.Fatal("there is no frontend")
		}
		want := []service.Server{{ID: 0x101, Backend: 1}, {ID: 0x102, Backend: 2}, {ID: 0x103, Backend: 3}}
		octets, local := uint8(2), service.Internal
		if !on {
			want, octets = nil, 0
		}
		if !slices.Equal(f.Servers, want) || f.ServerIDLength != octets || f.Local != local {
			t.Errorf("with %v: %+v of %d octets, local in %d; want %+v, %d, %d", on, f.Servers, f.ServerIDLength,
				f.Local, want, octets, local)
		}
	}
}
