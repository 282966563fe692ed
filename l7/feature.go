// Package l7 is the feature that enforces policies by HTTP request, DNS name and TLS server name: it keeps a proxy
// running where policies need it, and tells it the rules.
package l7

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"myelin/agent/feature"
	"myelin/bpf"
	"myelin/internal/durable"
	"myelin/internal/ticker"
	"myelin/l7/config"
	"myelin/l7/control"
	"myelin/l7/device"
	"myelin/l7/dns"
	"myelin/l7/proxy"
)

// watchTime is between two looks whether the proxy still runs, if it is not this process's child.
const watchTime = time.Second

// retryTime is until the next attempt to start a proxy that did not start.
const retryTime = 2 * time.Second

// DNS response codes (RFC 1035, section 4.1.1).
const (
	codeNameError = 3
	codeRefused   = 5
)

// Params are what the feature needs beyond the node.
type Params struct {
	Version string
	// MTU is that of pods, and RouteMTU that of their routes where it is smaller.
	MTU func() (mtu, routeMTU int)
	// Record takes the proxy's records, and Lost how many were overwritten before they were read.
	Record func([]control.Record)
	Lost   func(n uint64)
	// Policies are those by which the endpoint in a slot may use names, by the number of the selector.
	Policies func(slot uint16) map[uint32][]string
}

// Feature is the agent's side of the proxy.
type Feature struct {
	*feature.Node
	Params
	client *control.Client
	names  *names
	woken  chan struct{}
	first  chan struct{} // closed when a policy needs the proxy for the first time
	need   func()        // closes it

	mu      sync.Mutex     // held while the proxy is configured
	given   *config.Config // what policies want, without the contents of Secrets; nil: they have not said yet
	uses    []*secretUse   // Secrets that given names
	wanted  []byte         // the last configuration; nil: no policy needs the proxy
	applied bool           // the proxy that runs has it
	inode   uint64         // of the network namespace that the devices lead to
	// leadTo is the proxy whose network namespace that was, as another one may get its inode number, and configured
	// the one that has the configuration. They are zero until there is one.
	leadTo, configured control.Status
	failed             error
}

// New returns the feature of a node.
func New(n *feature.Node, p Params) *Feature {
	f := &Feature{Node: n, Params: p, woken: make(chan struct{}, 1), first: make(chan struct{})}
	f.need = sync.OnceFunc(func() { close(f.first) })
	f.names = &names{fetch: func(ctx context.Context) ([]dns.Row, error) { return f.client.Names(ctx) }, now: time.Now}
	return f
}

// Feature is its entry in the agent's list.
func (f *Feature) Feature() *feature.Feature {
	return &feature.Feature{
		Name: "l7", Start: f.start, Settings: f.settings, Lists: f.lists,
		Status:  func() []feature.Status { return []feature.Status{f.status()} },
		Metrics: f.metrics, Commands: commands(),
		Rights: []feature.Right{{Resources: []string{"secrets"}, Verbs: []string{"list", "watch"}, Namespaced: true}},
	}
}

func (f *Feature) settings(s *bpf.Settings) {
	if f.Config.EnforcesL7() {
		s.L7 = 1
		if f.Config.L7.Open {
			s.L7Open = 1
		}
		s.DnsCache, s.DnsReports = flag(f.cachesDNS()), flag(f.cachesDNS() && f.Config.Hubble.Enabled)
	}
}

// cachesDNS reports whether DNS messages may pass without the proxy. What passes is recorded by events of the datapath.
func (f *Feature) cachesDNS() bool {
	return f.Config.DNS.Cache && (!f.Config.Hubble.Enabled || f.Config.Events.Trace)
}

func flag(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// start adopts the configuration of the agent before, so that its proxy is watched from now on.
func (f *Feature) start(context.Context) error {
	f.client = control.NewClient(f.Config.Myelin.RunDir)
	if !f.Config.EnforcesL7() {
		return nil
	}
	data, err := os.ReadFile(control.ConfigFile(f.Config.Myelin.RunDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the proxy's configuration: %w", err)
	}
	if f.wanted = data; data != nil {
		f.need()
	}
	f.Go("l7", f.watch)
	f.Go("l7-records", f.follow)
	f.Go("l7-secrets", f.followSecrets)
	return nil
}

// Apply makes the proxy enforce a configuration, and returns when it does. The proxy is started with the first
// configuration that has anything in it.
func (f *Feature) Apply(ctx context.Context, c *config.Config) error {
	full := *c
	full.DNS = config.DNS{
		MinTTL:                    time.Duration(f.Config.DNS.MinTTL) * time.Second,
		MaxAddressesPerName:       f.Config.DNS.MaxAddressesPerName,
		IdleConnectionGracePeriod: f.Config.DNS.IdleGrace, RejectCode: codeRefused,
		Cache: f.cachesDNS(),
	}
	full.Records = f.Config.Hubble.Enabled
	if f.Config.DNS.RejectCode == "nameError" {
		full.DNS.RejectCode = codeNameError
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.given = &full
	return f.write(ctx)
}

// write makes the configuration of what policies want and the Secrets that there are, and the proxy enforce it. The
// caller holds mu.
func (f *Feature) write(ctx context.Context) error {
	full := f.withSecrets(f.given)
	data, err := control.Encode(full)
	if err != nil {
		return fmt.Errorf("encode the proxy's configuration: %w", err)
	}
	if f.wanted == nil && len(full.Rules)+len(full.Selectors)+len(full.Endpoints) == 0 {
		return nil
	}
	if !bytes.Equal(data, f.wanted) {
		if err := os.MkdirAll(control.Dir(f.Config.Myelin.RunDir), 0o700); err != nil {
			return fmt.Errorf("make the proxy's directory: %w", err)
		}
		if err := durable.Write(control.ConfigFile(f.Config.Myelin.RunDir), data); err != nil {
			return fmt.Errorf("write the proxy's configuration: %w", err)
		}
		f.wanted, f.applied = data, false
		f.need()
	}
	return f.realise(ctx)
}

// realise makes the proxy run with what is wanted. The caller holds mu.
func (f *Feature) realise(ctx context.Context) error {
	err := f.attempt(ctx)
	if err != nil && (f.failed == nil || f.failed.Error() != err.Error()) {
		f.Log.Error("The proxy for L7 rules does not work", "error", err)
	}
	f.failed = err
	return err
}

func (f *Feature) attempt(ctx context.Context) error {
	if err := f.ensure(ctx); err != nil {
		return err
	}
	status, ok := f.running(ctx)
	if err := f.setDevices(status); err != nil {
		return err
	}
	if f.applied && ok && status.Same(&f.configured) {
		return nil
	}
	if err := f.client.Configure(ctx, f.wanted); err != nil {
		return err
	}
	f.applied, f.configured = true, status
	return nil
}

// setDevices makes the devices that lead to the proxy's network namespace, if it or the process is another one than
// before.
func (f *Feature) setDevices(of control.Status) error {
	namespace, err := control.Namespace(f.Config.Myelin.RunDir)
	if err != nil {
		return fmt.Errorf("find the proxy's network namespace: %w", err)
	}
	defer namespace.Close()
	inode, err := inodeOf(namespace)
	if err != nil || inode == f.inode && of.Same(&f.leadTo) {
		return err
	}
	mtu, routeMTU := f.MTU()
	err = device.Set(device.Spec{
		Datapath: f.Datapath, Namespace: namespace, TUN: proxy.DeviceName, IPv4: f.Config.IPv4.Enabled,
		IPv6: f.Config.IPv6.Enabled, MTU: mtu, RouteMTU: routeMTU, ProcSys: f.Config.Myelin.SysctlRoot,
	})
	if err != nil {
		return err
	}
	f.inode, f.leadTo = inode, of
	return nil
}

func (f *Feature) wake() {
	select {
	case f.woken <- struct{}{}:
	default:
	}
}

// watch starts the proxy again when it ends.
func (f *Feature) watch(ctx context.Context) error {
	if !f.awaitNeed(ctx) {
		return nil
	}
	tick := ticker.New()
	for ctx.Err() == nil {
		wait := watchTime
		if f.check(ctx) != nil {
			wait = retryTime
		}
		select {
		case <-ctx.Done():
		case <-f.woken:
		case <-tick.Next(wait):
		}
	}
	return nil
}

// awaitNeed returns when a policy needs the proxy, or false if the agent ends before.
func (f *Feature) awaitNeed(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-f.first:
		return true
	}
}

// check looks whether the proxy runs as is wanted, and starts it if it does not.
func (f *Feature) check(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.wanted == nil {
		return nil
	}
	if status, ok := f.running(ctx); ok && f.inode != 0 && f.applied && status.Same(&f.configured) {
		return nil
	}
	return f.realise(ctx)
}

// commands are those that show what pods resolve.
func commands() []feature.Command {
	return []feature.Command{
		{Name: "fqdn", Short: "Inspect the DNS names that pods have resolved", Views: []feature.View{{Name: "list",
			Short: "List names, addresses, remaining TTL, pods and policies", Table: "fqdn"}}},
	}
}
