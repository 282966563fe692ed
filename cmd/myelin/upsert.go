package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	apiv1 "myelin/api/v1"
)

// upsertFlags are what a Service is programmed with.
type upsertFlags struct {
	socket    *string
	frontends []string
	backends  []string
	affinity  time.Duration
	algorithm string
	mode      string
	ranges    []string
	deny      bool
	serverID  uint32
	health    healthFlags
}

// healthFlags are how its backends are asked.
type healthFlags struct {
	check             string
	port              uint16
	host              string
	via               string
	interval, timeout time.Duration
	rise, fall        uint32
}

func (f *upsertFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "upsert NAME",
		Short: "Create or replace a Service",
		Long: "Programs a Service without Kubernetes: all of it, whatever its name had before. It is kept over " +
			"restarts. Frontends have one port and protocol; backends " +
			"speak that protocol. With a health check, a backend that fails gets no new flows, unless all fail.",
		Example: "  myelin service upsert web --frontend 192.0.2.10:80/TCP --backend 10.0.0.1:8080 --backend " +
			"10.0.0.2:8080,weight=3 --health-check http:/healthz\n" +
			"  myelin service upsert dns --frontend 192.0.2.53:53/UDP --frontend [2001:db8::53]:53/UDP --backend " +
			"10.0.0.3:53 --health-check tcp",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&f.frontends, "frontend", nil, "ADDRESS:PORT[/PROTOCOL] that clients use; may be repeated")
	flags.StringArrayVar(&f.backends, "backend", nil,
		"ADDRESS:PORT[,weight=N][,server-id=HEX] that flows go to; may be repeated")
	flags.DurationVar(&f.affinity, "affinity", 0,
		"how long a client stays with its backend, in whole seconds; 0: not at all")
	flags.StringVar(&f.algorithm, "algorithm", "", "random, maglev or least-conn (default: the node's)")
	flags.StringVar(&f.mode, "mode", "", "snat, dsr or hybrid (default: the node's)")
	flags.StringArrayVar(&f.ranges, "source-range", nil,
		"CIDR that may come from outside; may be repeated (default: everybody may)")
	flags.BoolVar(&f.deny, "source-deny", false, "source ranges are denied, not allowed")
	flags.Uint32Var(&f.serverID, "quic-server-id-length", 0,
		"octets of the server ID by which QUIC connection IDs select a backend, 1 to 8 (default: they don't)")
	f.health.add(cmd)
	return cmd
}

func (h *healthFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&h.check, "health-check", "",
		"tcp, http[:PATH] or grpc[:SERVICE]: how backends are asked whether they serve (default: they aren't)")
	flags.Uint16Var(&h.port, "health-port", 0, "the port that is asked (default: the backend's)")
	flags.StringVar(&h.host, "health-host", "", "the Host header of http (default: the backend's address)")
	flags.StringVar(&h.via, "health-via", "",
		"datapath: as clients' packets travel, by DSR where that is used; direct: to the backend's address (default: "+
			"datapath)")
	flags.DurationVar(&h.interval, "health-interval", 0, "from one question to the next (default 2s)")
	flags.DurationVar(&h.timeout, "health-timeout", 0, "what an answer may take (default 1s)")
	flags.Uint32Var(&h.rise, "health-rise", 0, "good answers in a row that make a backend pass (default 2)")
	flags.Uint32Var(&h.fall, "health-fall", 0, "bad answers in a row that make it fail (default 3)")
}

// request reads the flags; the agent validates most of them.
func (f *upsertFlags) request(name string) (*apiv1.Service, error) {
	if f.affinity < 0 || f.affinity%time.Second != 0 || f.affinity > 1<<31*time.Second {
		return nil, fmt.Errorf("--affinity %s: want whole seconds", f.affinity)
	}
	s := &apiv1.Service{
		Name: name, Frontends: f.frontends, AffinitySeconds: uint32(f.affinity / time.Second), Algorithm: f.algorithm,
		Mode:         f.mode,
		SourceRanges: f.ranges, SourceDeny: f.deny, QuicServerIdLength: f.serverID,
	}
	for _, text := range f.backends {
		b, err := parseBackend(text)
		if err != nil {
			return nil, err
		}
		s.Backends = append(s.Backends, b)
	}
	var err error
	s.HealthCheck, err = f.health.request()
	return s, err
}

// parseBackend reads "10.0.0.1:8080,weight=3,server-id=0a000001".
func parseBackend(text string) (*apiv1.ServiceBackend, error) {
	words := strings.Split(text, ",")
	b := &apiv1.ServiceBackend{Address: words[0]}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseUint(value, 10, 16)
		switch {
		case name == "weight" && err == nil && b.Weight == nil:
			weight := uint32(n)
			b.Weight = &weight
		case name == "server-id" && value != "" && b.ServerId == "":
			b.ServerId = value
		default:
			return nil, fmt.Errorf("--backend %s: want ADDRESS:PORT[,weight=N][,server-id=HEX], N in 0..65535", text)
		}
	}
	return b, nil
}

func (h *healthFlags) request() (*apiv1.HealthCheck, error) {
	if h.check == "" {
		if *h != (healthFlags{}) {
			return nil, fmt.Errorf("--health-… flags need --health-check: tcp, http[:PATH] or grpc[:SERVICE]")
		}
		return nil, nil
	}
	kind, rest, _ := strings.Cut(h.check, ":")
	p := &apiv1.HealthCheck{Kind: kind, Port: uint32(h.port), Host: h.host, Via: h.via, Rise: h.rise, Fall: h.fall}
	switch kind {
	case "http":
		p.Path = rest
	case "grpc":
		p.Service = rest
	case "tcp":
		if rest != "" {
			return nil, fmt.Errorf("--health-check %s: tcp has nothing behind it; --health-port is for another port",
				h.check)
		}
	default:
		return nil, fmt.Errorf("--health-check %s: want tcp, http[:PATH] or grpc[:SERVICE]", h.check)
	}
	for _, d := range []struct {
		flag string
		from time.Duration
		to   *uint32
	}{{"interval", h.interval, &p.IntervalMs}, {"timeout", h.timeout, &p.TimeoutMs}} {
		if d.from < 0 || d.from > 24*time.Hour || d.from%time.Millisecond != 0 {
			return nil, fmt.Errorf("--health-%s %s: want whole milliseconds, at most a day", d.flag, d.from)
		}
		*d.to = uint32(d.from / time.Millisecond)
	}
	return p, nil
}

func (f *upsertFlags) run(cmd *cobra.Command, name string) error {
	s, err := f.request(name)
	if err != nil {
		return err
	}
	return changeServices(cmd, *f.socket, func(c caller) error {
		answer, err := c.client.Upsert(c.ctx, &apiv1.UpsertServiceRequest{Service: s})
		if err != nil {
			return err
		}
		did := "programmed anew"
		if answer.GetCreated() {
			did = "programmed"
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "service %s %s\n", name, did)
		return err
	})
}
