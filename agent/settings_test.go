package agent

import (
	"errors"
	"log/slog"
	"testing"

	"myelin/bpf"
	"myelin/config"
)

// agentWith is an agent that is not started.
func agentWith(c *config.Config) *agent {
	return newAgent(c, "test", slog.New(slog.DiscardHandler), nil)
}

// TestPacketSettings: the programs' constants are those that the file implies.
func TestPacketSettings(t *testing.T) {
	for file, want := range map[string][8]uint16{
		"policyEnforcementMode: never": {0, 10000, 29999, 0, 0, 0, 0, 0},
		"":                             {0, 10000, 29999, 0, 0, 0, 0, 1},
		"socketLB.enabled: true":       {0, 10000, 29999, 0, 0, 0, 0, 1},
		"nodePort.enabled: true":       {1, 10000, 19999, 20000, 29999, 30000, 32767, 1},
		"kubeProxyReplacement: true":   {1, 10000, 19999, 20000, 29999, 30000, 32767, 1},
		"{kubeProxyReplacement: true, myelin.nat.portRange: 2000-2999, nodePort.range: \"4000,4001\"}": {1, 2000, 2499,
			2500, 2999, 4000, 4001, 1},
		"myelin.flowTracking: always": {0, 10000, 29999, 0, 0, 0, 0, 1},
	} {
		c, err := config.Parse([]byte(file), "f")
		if err != nil {
			t.Fatal(err)
		}
		a := agentWith(c)
		var s bpf.Settings
		a.services.portSettings(&s)
		follows := uint16(flag(a.Config.InspectsHost()))
		got := [8]uint16{uint16(s.Services), s.NatPortMin, s.NatPortMax, s.LbPortMin, s.LbPortMax, s.NodePortMin,
			s.NodePortMax, follows}
		if got != want {
			t.Errorf("%s: got %v, want %v", file, got, want)
		}
		a.datapath.memory = func() (uint64, error) { return 64 << 30, nil }
		sizes, err := a.datapath.sizes()
		if err != nil || sizes.Translations != 16384 || (sizes.Services != 0) != c.Services() {
			t.Errorf("%s: got sizes %+v: %v", file, sizes, err)
		}
	}
}

// TestEventSettings: which events there are, and how many.
func TestEventSettings(t *testing.T) {
	const limits = "bpf.events.default: {rateLimit: 5, burstLimit: 10}"
	for file, want := range map[string][6]uint32{
		"":                               {defaultEventRate, 0, defaultTraceRate, 0, 1, 0},
		limits:                           {5, 10, 5, 10, 1, 0},
		"bpf.events.drop.enabled: false": {0, 0, defaultTraceRate, 0, 1, 0},
		"bpf.events.policyVerdict.enabled: false": {defaultEventRate, 0, defaultTraceRate, 0, 1, 1},
		"bpf.events.trace.enabled: false":         {defaultEventRate, 0, defaultTraceRate, 0, 0, 0},
	} {
		c, err := config.Parse([]byte(file), "f")
		if err != nil {
			t.Fatal(err)
		}
		var s bpf.Settings
		agentWith(c).datapath.settings(&s)
		got := [6]uint32{s.EventRate, s.EventBurst, s.TraceRate, s.TraceBurst, uint32(s.Monitor), uint32(s.NoVerdicts)}
		if got != want {
			t.Errorf("%s: got %v, want %v", file, got, want)
		}
	}
}

// TestQUIC: connection IDs are read where that is asked for, and packets are translated.
func TestQUIC(t *testing.T) {
	for file, want := range map[string]uint8{
		"kubeProxyReplacement: true": 0, "myelin.quicConnectionIDs: true": 0, "loadBalancer.standalone: true": 1,
		"{kubeProxyReplacement: true, myelin.quicConnectionIDs: true}": 1,
	} {
		c, err := config.Parse([]byte(file), "f")
		if err != nil {
			t.Fatal(err)
		}
		var s bpf.Settings
		a := agentWith(c)
		if a.services.portSettings(&s); s.Quic != want || a.services.serviceConfig().QUIC != (want == 1) {
			t.Errorf("%s: got %d, want %d", file, s.Quic, want)
		}
	}
}

// TestNoBackendResponse: packets are refused, or dropped where that is asked for.
func TestNoBackendResponse(t *testing.T) {
	for file, want := range map[string]uint8{"": 0, "serviceNoBackendResponse: reject": 0,
		"serviceNoBackendResponse: drop": 1} {
		c, err := config.Parse([]byte("kubeProxyReplacement: true\n"+file), "f")
		if err != nil {
			t.Fatal(err)
		}
		var s bpf.Settings
		if agentWith(c).services.portSettings(&s); s.NoBackendDrop != want {
			t.Errorf("%s: got %d, want %d", file, s.NoBackendDrop, want)
		}
	}
}

// TestMaglevSizes: there is room for Maglev tables where a Service may have one.
func TestMaglevSizes(t *testing.T) {
	for file, want := range map[string]uint32{
		"kubeProxyReplacement: true":                                       0,
		"loadBalancer.algorithm: maglev":                                   0, // Services are off
		"{kubeProxyReplacement: true, loadBalancer.algorithm: maglev}":     4 * 65536,
		"{kubeProxyReplacement: true, bpf.lbAlgorithmAnnotation: true}":    4 * 65536,
		"{loadBalancer.standalone: true, bpf.lbMapMax: 2048}":              4 * 2048,
		"{kubeProxyReplacement: true, loadBalancer.algorithm: least-conn}": 0,
	} {
		c, err := config.Parse([]byte(file), "f")
		if err != nil {
			t.Fatal(err)
		}
		if s, err := agentWith(c).datapath.sizes(); err != nil || s.MaglevTables != want {
			t.Errorf("%s: room for %d rows, want %d: %v", file, s.MaglevTables, want, err)
		}
	}
}

// TestDynamicSizes: with bpf.mapDynamicSizeRatio, maps take that share of the node's memory when they have grown.
func TestDynamicSizes(t *testing.T) {
	const memory, ratio = 64 << 30, 0.0025
	for file, services := range map[string]bool{
		"bpf.mapDynamicSizeRatio: 0.0025":                               false,
		"{kubeProxyReplacement: true, bpf.mapDynamicSizeRatio: 0.0025}": true,
	} {
		c, err := config.Parse([]byte(file), "f")
		if err != nil {
			t.Fatal(err)
		}
		a := agentWith(c)
		d := a.datapath
		a.services.portSettings(&d.Loaded)
		d.memory = func() (uint64, error) { return memory, nil }
		s, err := d.sizes()
		flows, paths := bpf.EntryBytes(services)
		got := float64(d.growth.limit*flows+int(s.Paths)*paths) / (ratio * memory)
		if err != nil || got < 0.99 || got > 1 || s.Flows != 16384 || s.Translations != s.Flows {
			t.Errorf("%s: %+v take %.3f of what they may: %v", file, s, got, err)
		}
		d.memory = func() (uint64, error) { return 0, errors.New("none") }
		if _, err := d.sizes(); err == nil {
			t.Errorf("%s: no error without the node's memory", file)
		}
	}
}

// TestDirectSettings: whether, and how, backends answer by themselves.
func TestDirectSettings(t *testing.T) {
	const on = "kubeProxyReplacement: true\n"
	for file, want := range map[string][3]uint8{
		"loadBalancer.mode: dsr":          {0, 0, 0},
		on:                                {0, 0, 0},
		on + "loadBalancer.mode: dsr":     {1, 1, 0},
		on + "loadBalancer.mode: hybrid":  {1, 2, 0},
		on + "bpf.lbModeAnnotation: true": {1, 0, 0},
		on + "loadBalancer: {mode: dsr, dsrDispatch: ipip}":   {1, 1, 1},
		on + "loadBalancer: {mode: dsr, dsrDispatch: geneve}": {1, 1, 2},
	} {
		c, err := config.Parse([]byte(file), "f")
		if err != nil {
			t.Fatal(err)
		}
		var s bpf.Settings
		agentWith(c).services.portSettings(&s)
		if got := [3]uint8{s.Direct, s.LbMode, s.LbDispatch}; got != want {
			t.Errorf("%s: got %v, want %v", file, got, want)
		}
	}
}
