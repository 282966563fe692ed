package bpf

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
)

// late are programs that few nodes need, which are loaded when they are first asked for: the verifier takes as long for
// them as for most others.
type late[T any] struct {
	mu     sync.Mutex
	loaded *T
}

// get returns the programs, loaded with the maps of the datapath.
func (l *late[T]) get(d *Datapath, what string) (*T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loaded != nil {
		return l.loaded, nil
	}
	o := d.options
	spec, err := configured(&o)
	if err != nil {
		return nil, err
	}
	programs := new(T)
	if err := d.assignLate(spec, programs); err != nil {
		return nil, loadError(what, err)
	}
	l.loaded = programs
	return programs, nil
}

// assignLate loads the programs of a struct with the maps of the collection, which may have grown or not yet.
func (o *Objects) assignLate(spec *ebpf.CollectionSpec, programs any) error {
	all, shared := o.MapsByName(), map[string]*ebpf.Map{}
	all[".bss"] = o.variables
	for name := range spec.Maps {
		if strings.HasPrefix(name, ".rodata") {
			continue
		}
		m := all[plain(name)]
		if m == nil {
			return fmt.Errorf("map %s: not in the datapath", name)
		}
		spec.Maps[name].MaxEntries = m.MaxEntries()
		shared[name] = m
	}
	if err := foldSettings(spec, reflect.TypeOf(programs).Elem()); err != nil {
		return err
	}
	return spec.LoadAndAssign(programs, &ebpf.CollectionOptions{MapReplacements: shared})
}

// l3Programs are the hooks of wires without a link-layer header.
type l3Programs struct {
	FromWire *ebpf.Program `ebpf:"from_wire_l3"`
	ToWire   *ebpf.Program `ebpf:"to_wire_l3"`
}

// Close closes the descriptors.
func (p *l3Programs) Close() error { return closeAll(p.FromWire, p.ToWire) }

// ipsecPrograms is the hook of the IPsec device.
type ipsecPrograms struct {
	FromIPsec *ebpf.Program `ebpf:"from_ipsec"`
}

// Close closes the descriptor.
func (p *ipsecPrograms) Close() error { return closeAll(p.FromIPsec) }

// proxyPrograms are the hooks of the proxy's devices, and of its network namespace.
type proxyPrograms struct {
	FromProxy   *ebpf.Program `ebpf:"from_proxy"`
	FromProxyL3 *ebpf.Program `ebpf:"from_proxy_l3"`
	Accept      *ebpf.Program `ebpf:"proxy_accept"`
}

// Close closes the descriptors.
func (p *proxyPrograms) Close() error { return closeAll(p.FromProxy, p.FromProxyL3, p.Accept) }

func (d *Datapath) loadL3() (*l3Programs, error) {
	return d.l3.get(d, "programs of wires without a link-layer header")
}

func (d *Datapath) loadIPsec() (*ipsecPrograms, error) {
	return d.ipsec.get(d, "program of the IPsec device")
}

func (d *Datapath) loadProxy() (*proxyPrograms, error) {
	return d.proxy.get(d, "programs of the proxy's devices")
}

// closeLate closes the descriptors of the programs that have been loaded.
func (d *Datapath) closeLate() (err error) {
	if d.l3.loaded != nil {
		err = d.l3.loaded.Close()
	}
	if d.ipsec.loaded != nil {
		err = errors.Join(err, d.ipsec.loaded.Close())
	}
	if d.proxy.loaded != nil {
		err = errors.Join(err, d.proxy.loaded.Close())
	}
	return err
}
