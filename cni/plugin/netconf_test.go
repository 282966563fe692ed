package plugin

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	apiv1 "myelin/api/v1"
)

// FuzzNetConf: whatever the configuration is, it is refused with a code and a
// message, or its socket can be used and its prevResult survives the way to
// the agent.
func FuzzNetConf(f *testing.F) {
	for _, seed := range []string{
		`{"cniVersion":"1.1.0","name":"myelin","type":"myelin-cni"}`,
		`{"cniVersion":"1.0.0","name":"n","agentSocket":"/run/x.sock","unknown":[1]}`,
		`{"agentSocket":7}`, `{"agentSocket":"x"}`, `{"ipam":{"type":"host-local"}}`, `{"dns":{"nameservers":"x"}}`,
		`[]`, `{`,
		`{"cniVersion":"0.4.0","prevResult":{"interfaces":[{"name":"eth0","sandbox":"/n"}],"ips":[{"version":"4","address":"10.0.0.2/32","interface":0}]}}`,
		`{"cniVersion":"1.1.0","prevResult":{"ips":[{"address":"10.0.0.2/32","interface":-4}],"routes":[{"dst":"::/0","gw":"fd00::1"}],"interfaces":[null]}}`,
		`{"cniVersion":"1.1.0","prevResult":{"ips":[null],"routes":[null]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		conf, bad := parseNetConf(data)
		if bad != nil {
			if bad.Code == 0 || bad.Msg == "" {
				t.Errorf("error without code or message: %+v", bad)
			}
			return
		}
		if !filepath.IsAbs(conf.AgentSocket) || !filepath.IsAbs(conf.runDir()) {
			t.Errorf("socket %q, run directory %q", conf.AgentSocket, conf.runDir())
		}
		previous, bad := conf.previous()
		if bad == nil && previous != nil {
			fromResult(previous)
		}
	})
}

// FuzzCNIArgs: arguments are refused with code 4, or read without surprise.
func FuzzCNIArgs(f *testing.F) {
	for _, seed := range []string{
		"", "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=u;X=y",
		"K8S_POD_NAME=a=b", "X=y", ";", "=", "CommonArgs=1", "podArgs=1", "IgnoreUnknown=maybe", "K8S_POD_NAME=\x00",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		args, bad := parseArgs(text)
		if bad == nil {
			return
		}
		if bad.Code != 4 || bad.Details == "" || !reflect.DeepEqual(args, podArgs{}) {
			t.Errorf("%+v with %+v", bad, args)
		}
	})
}

func TestNetConf(t *testing.T) {
	for _, tt := range []struct {
		conf    string
		code    uint
		details string
	}{
		{`{"name":"n","agentSocket":"/a/b.sock","other":{}}`, 0, ""},
		{`{}`, 0, ""},
		{`{"agentSocket":true}`, types.ErrInvalidNetworkConfig, "agentSocket: is bool, must be string"},
		{`{"dns":{"nameservers":"10.0.0.1"}}`, types.ErrInvalidNetworkConfig,
			"dns.nameservers: is string, must be array"},
		{`{"prevResult":[]}`, types.ErrInvalidNetworkConfig, "prevResult: is array, must be object"},
		{`{"name":7}`, types.ErrInvalidNetworkConfig, "name: is number, must be string"},
		{`{"agentSocket":"a.sock"}`, types.ErrInvalidNetworkConfig, `agentSocket: "a.sock" is no absolute path`},
		{`{"ipam":{"type":"dhcp"}}`, types.ErrUnsupportedField, `ipam: {"type": "dhcp"}`},
		{`{`, types.ErrDecodingFailure, "unexpected end"},
	} {
		conf, bad := parseNetConf([]byte(tt.conf))
		switch {
		case tt.code == 0 && bad != nil, tt.code == 0 && conf.runDir() == ".":
			t.Errorf("%s: %+v %v", tt.conf, conf, bad)
		case tt.code != 0 && (bad == nil || bad.Code != tt.code || !strings.Contains(bad.Details, tt.details)):
			t.Errorf("%s: %+v, want code %d with %q", tt.conf, bad, tt.code, tt.details)
		}
	}
}

// TestResult: a result is the same after the way to the agent and back.
func TestResult(t *testing.T) {
	in := &apiv1.CNIResult{
		Interfaces: []*apiv1.CNIInterface{{Name: "mye1", Mac: "02:00:00:00:00:01", Mtu: 1500},
			{Name: "eth0", Sandbox: "/n"}},
		Addresses: []*apiv1.CNIAddress{
			{Interface: 1, Prefix: "10.0.0.2/32", Gateway: "10.0.0.1"}, {Interface: 1, Prefix: "fd00::2/128",
				Gateway: "fd00::1"},
		},
		Routes: []*apiv1.CNIRoute{{Prefix: "0.0.0.0/0", Gateway: "10.0.0.1"}, {Prefix: "::/0", Gateway: "fd00::1"}},
	}
	out, err := toResult(in)
	if err != nil {
		t.Fatal(err)
	}
	if out.CNIVersion != types100.ImplementedSpecVersion || out.IPs[1].Address.String() != "fd00::2/128" {
		t.Errorf("%+v", out)
	}
	if back := fromResult(out); back.String() != in.String() {
		t.Errorf("got %s\nwant %s", back, in)
	}
	if _, err := toResult(&apiv1.CNIResult{Addresses: []*apiv1.CNIAddress{{Prefix: "10.0.0.2"}}}); err == nil {
		t.Error("an address without length was accepted")
	}
}
