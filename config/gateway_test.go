package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestGateway(t *testing.T) {
	c, err := Parse([]byte("loadBalancer.standalone: true\nmyelin.gateway.trustedNetwork: true\n"+
		"myelin.gateway.peers: [\"192.0.2.1:9882\", \"[2001:db8::1]:9883\"]"), "lb.yaml")
	if err != nil {
		t.Fatal(err)
	}
	g := &c.Myelin.Gateway
	if got := g.PeerAddresses(); len(got) != 2 || got[1].String() != "[2001:db8::1]:9883" || g.TLS() ||
		g.ListenAddress != ":9882" || len(c.Warnings) > 0 {
		t.Errorf("got %+v, warnings %v", g, c.Warnings)
	}
	c, err = Parse([]byte("myelin.gateway.listenAddress: \"[::1]:1\""), "lb.yaml")
	if err != nil || !strings.Contains(c.Warnings.Error(),
		"myelin.gateway.listenAddress: has no effect: myelin.gateway.peers is empty") {
		t.Errorf("got %v, warnings %v", err, c.Warnings)
	}
}

func TestGatewayRefused(t *testing.T) {
	const peer = "myelin.gateway.peers: [\"192.0.2.1:9882\"]\n"
	const files = "myelin.gateway.tls: {certFile: /c, keyFile: /k, caFile: /a}\n"
	const standalone = "loadBalancer.standalone: true\n"
	refuse(t, map[string]refused{
		"without certificates": {standalone + peer, []string{"f.yaml: myelin.gateway.peers: needs " +
			"myelin.gateway.tls.certFile, keyFile and caFile, without which any host could redirect connections; or " +
			"myelin.gateway.trustedNetwork: true, if only peers can send from their addresses"}},
		"in a cluster": {peer + files, []string{"f.yaml: myelin.gateway.peers: is set, and loadBalancer.standalone " +
			"is false: only load balancers without a cluster have peers"}},
		"half a certificate": {standalone + peer + "myelin.gateway.tls.keyFile: /k", []string{
			"f.yaml: myelin.gateway.tls.certFile: myelin.gateway.tls.certFile, keyFile and caFile must all be set, " +
				"or none of them"}},
		"both": {standalone + peer + files + "myelin.gateway.trustedNetwork: true", []string{
			"f.yaml: myelin.gateway.trustedNetwork: is true, and myelin.gateway.tls.certFile is set: peers have " +
				"certificates or need none"}},
		"a name": {"myelin.gateway.peers: [\"lb2:9882\"]", []string{"f.yaml: myelin.gateway.peers: \"lb2:9882\" is " +
			"not an address and port such as 192.0.2.1:9882 or [2001:db8::1]:9882"}},
		"no machine": {"myelin.gateway.peers: [\"0.0.0.0:9882\"]", []string{
			"f.yaml: myelin.gateway.peers: 0.0.0.0 is not the address of one machine"}},
		"a path": {"myelin.gateway.tls.caFile: ca.pem", []string{
			"f.yaml: myelin.gateway.tls.caFile: \"ca.pem\" is not a clean absolute path"}},
		"no port": {"myelin.gateway.listenAddress: \"192.0.2.1\"", []string{"f.yaml: myelin.gateway.listenAddress: " +
			"\"192.0.2.1\" is not an address and port such as 192.0.2.1:9882, or :9882"}},
	})
	var peers []string
	for i := range maxPeers + 1 {
		peers = append(peers, fmt.Sprintf("192.0.2.1:%d", 1000+i))
	}
	refuse(t, map[string]refused{"too many": {
		standalone + "myelin.gateway.trustedNetwork: true\nmyelin.gateway.peers: \"" + strings.Join(peers, " ") + "\"",
		[]string{"f.yaml: myelin.gateway.peers: has 16 peers, and may have 15"},
	}})
}
