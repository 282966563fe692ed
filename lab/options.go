package lab

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"time"
)

// DefaultDir holds a directory per lab.
const DefaultDir = "/run/myelin-lab"

// DirVariable has the directory of the lab (Lab.Dir) in the environment of its nodes: `myelin status --cluster` and
// `myelin sysdump` ask the agents of its nodes.
const DirVariable = "MYELIN_LAB"

// Fabrics: how nodes are joined.
const (
	FabricBridge = "bridge" // one Ethernet segment with the world on it
	FabricWire   = "wire"   // exactly two nodes, one veth between them, no world
)

// Underlays: which of a Node's InternalIPs the fabric carries.
const (
	UnderlayDual = "dual"
	UnderlayIPv4 = "ipv4"
	UnderlayIPv6 = "ipv6"
)

// What stands for images, of which none is run.
const (
	ImagesServe = "serve" // `myelin lab serve` stands in
	ImagesNone  = "none"  // nothing does: the Pod has its network, and stays Pending
)

// Options says what lab to build. Name and Manifests are required, the rest has defaults.
type Options struct {
	Name      string `json:"name"`      // 1 to 20 characters of a-z and 0-9, the first one a letter
	Manifests string `json:"manifests"` // a YAML file, or a directory of them, with at least one Node
	Dir       string `json:"dir"`       // DefaultDir

	More []string `json:"more,omitempty"` // further files or directories of manifests

	// Binary is the myelin executable: the supervisor, and what `myelin` in a container's command runs. Empty: the
	// supervisor runs in this process (as with InProcess), and commands can't use `myelin`.
	Binary    string `json:"binary,omitempty"`
	InProcess bool   `json:"inProcess,omitempty"` // run the supervisor in this process and stop it with Down

	// Agent is the executable that is run as `Agent agent --config FILE` on each node. Empty: no agents.
	Agent     string         `json:"agent,omitempty"`
	Config    string         `json:"config,omitempty"` // a file of Helm-named keys that all agents get, plus their own
	Values    map[string]any `json:"values,omitempty"` // more keys, dotted ("bpf.masquerade"), over Config
	CNIPlugin string         `json:"cniPlugin,omitempty"`
	Conflist  []byte         `json:"conflist,omitempty"` // a CNI configuration list for nodes without an agent

	Fabric   string `json:"fabric"`   // FabricBridge
	Underlay string `json:"underlay"` // UnderlayDual
	MTU      int    `json:"mtu"`      // bytes, 1500

	Images string `json:"images"` // what containers without a command do: ImagesServe

	// ServiceCIDRs are what Services get addresses from, one range a family: 10.96.0.0/16 and fd00:10:96::/112.
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs,omitempty"`

	Outside []netip.Addr `json:"outside,omitempty"` // more addresses of the world, off the nodes' subnets; 198.51.100.1 and 2001:db8:64::1

	Timeout       time.Duration `json:"timeout"` // to wait for agents and pods: 60 s
	KeepOnFailure bool          `json:"-"`       // leave a lab that failed to come up as it is, to look into it

	Stdin    io.Reader     `json:"-"` // the file "-"
	Log      *slog.Logger  `json:"-"`
	Progress func(string)  `json:"-"` // called with a line as each step begins or ends
	Env      []string      `json:"-"` // the environment of processes; os.Environ()
	Grace    time.Duration `json:"-"` // upper bound for terminationGracePeriodSeconds: 5 s
}

func (o *Options) setDefaults() {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	if o.Fabric == "" {
		o.Fabric = FabricBridge
	}
	if o.Underlay == "" {
		o.Underlay = UnderlayDual
	}
	if o.Images == "" {
		o.Images = ImagesServe
	}
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.Timeout == 0 {
		o.Timeout = 60 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = 5 * time.Second
	}
	if len(o.ServiceCIDRs) == 0 {
		o.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"),
			netip.MustParsePrefix("fd00:10:96::/112")}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	if o.Outside == nil {
		o.Outside = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:64::1")}
	}
}

func (o *Options) check() error {
	var errs []error
	if o.Manifests == "" {
		errs = append(errs, errors.New("no manifests given"))
	}
	if o.Fabric != FabricBridge && o.Fabric != FabricWire {
		errs = append(errs, fmt.Errorf("fabric %q: want %s or %s", o.Fabric, FabricBridge, FabricWire))
	}
	if o.Underlay != UnderlayDual && o.Underlay != UnderlayIPv4 && o.Underlay != UnderlayIPv6 {
		errs = append(errs, fmt.Errorf("underlay %q: want %s, %s or %s", o.Underlay, UnderlayDual, UnderlayIPv4,
			UnderlayIPv6))
	}
	if o.Images != ImagesServe && o.Images != ImagesNone {
		errs = append(errs, fmt.Errorf("images %q: want %s or %s", o.Images, ImagesServe, ImagesNone))
	}
	if o.MTU < 1280 || o.MTU > 65535 {
		errs = append(errs, fmt.Errorf("MTU %d: want 1280 to 65535", o.MTU))
	}
	if c := o.ServiceCIDRs; len(c) > 2 || len(c) == 2 && c[0].Addr().Is4() == c[1].Addr().Is4() {
		errs = append(errs, fmt.Errorf("service CIDRs %v: want one, or one of each family", c))
	}
	if o.Agent == "" && o.Config != "" {
		errs = append(errs, errors.New("a configuration but no agent"))
	}
	if o.CNIPlugin == "" && (o.Agent != "" || o.Conflist != nil) {
		errs = append(errs, errors.New("no CNI plugin given"))
	}
	for _, f := range []string{o.Binary, o.Agent, o.CNIPlugin} {
		if f == "" {
			continue
		}
		if _, err := os.Stat(f); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// checkName keeps hyphens out of a lab's name, so that NAME- begins the names of one lab's namespaces only.
func checkName(name string) error {
	if !regexp.MustCompile(`^[a-z][a-z0-9]{0,19}$`).MatchString(name) {
		return fmt.Errorf("lab name %q: want 1 to 20 characters of a-z and 0-9, the first one a letter", name)
	}
	return nil
}
