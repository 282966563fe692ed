package bpf

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
)

// Programs are those that every node loads. FromWireL3 and ToWireL3 are not among them (Datapath.loadL3).
type Programs struct {
	FromPod      *ebpf.Program `ebpf:"from_pod"`
	ToPod        *ebpf.Program `ebpf:"to_pod"`
	FromWire     *ebpf.Program `ebpf:"from_wire"`
	ToWire       *ebpf.Program `ebpf:"to_wire"`
	FromWireXDP  *ebpf.Program `ebpf:"from_wire_xdp"`
	Connect4     *ebpf.Program `ebpf:"connect4"`
	Connect6     *ebpf.Program `ebpf:"connect6"`
	Sendmsg4     *ebpf.Program `ebpf:"sendmsg4"`
	Sendmsg6     *ebpf.Program `ebpf:"sendmsg6"`
	Recvmsg4     *ebpf.Program `ebpf:"recvmsg4"`
	Recvmsg6     *ebpf.Program `ebpf:"recvmsg6"`
	Getpeername4 *ebpf.Program `ebpf:"getpeername4"`
	Getpeername6 *ebpf.Program `ebpf:"getpeername6"`
	Bind4        *ebpf.Program `ebpf:"bind4"`
	Bind6        *ebpf.Program `ebpf:"bind6"`
}

// Close closes the descriptors.
func (p *Programs) Close() error {
	return closeAll(p.FromPod, p.ToPod, p.FromWire, p.ToWire, p.FromWireXDP, p.Connect4, p.Connect6, p.Sendmsg4,
		p.Sendmsg6, p.Recvmsg4, p.Recvmsg6, p.Getpeername4, p.Getpeername6, p.Bind4, p.Bind6)
}

func closeAll(list ...io.Closer) (err error) {
	for _, one := range list {
		err = errors.Join(err, one.Close())
	}
	return err
}

// Objects are the programs and maps of a collection.
type Objects struct {
	DatapathMaps
	DatapathVariables
	Programs
	Epochs *ebpf.Map // its only row is a DatapathEpochTable
	// The only row of a filter is a DatapathAddressFilter.
	OwnFilter, FrontendFilter *ebpf.Map

	variables *ebpf.Map   // of the section .bss
	filterMu  *sync.Mutex // while a word of a filter changes
}

// Assign loads the collection.
func (o *Objects) Assign(spec *ebpf.CollectionSpec, options *ebpf.CollectionOptions) error {
	all := struct {
		*DatapathMaps
		*DatapathVariables
		*Programs
		Epochs    *ebpf.Map `ebpf:".data.epochs"`
		OwnFilter *ebpf.Map `ebpf:".data.own_filter"`
		Frontends *ebpf.Map `ebpf:".data.frontend_filter"`
		Variables *ebpf.Map `ebpf:".bss"`
	}{DatapathMaps: &o.DatapathMaps, DatapathVariables: &o.DatapathVariables, Programs: &o.Programs}
	err := spec.LoadAndAssign(&all, options)
	o.Epochs, o.OwnFilter, o.FrontendFilter, o.variables = all.Epochs, all.OwnFilter, all.Frontends, all.Variables
	o.filterMu = new(sync.Mutex)
	return err
}

// Close closes the descriptors.
func (o *Objects) Close() error {
	return closeAll(&o.DatapathMaps, &o.Programs, o.Epochs, o.OwnFilter, o.FrontendFilter, o.variables)
}

// l3Programs are the hooks of wires without a link-layer header.
type l3Programs struct {
	FromWire *ebpf.Program `ebpf:"from_wire_l3"`
	ToWire   *ebpf.Program `ebpf:"to_wire_l3"`
}

// Close closes the descriptors, if the programs have been loaded.
func (p *l3Programs) Close() error { return closeAll(p.FromWire, p.ToWire) }

// assignL3 loads them with the maps of the collection. Few nodes have such wires, and the verifier takes half as long
// for these two programs as for all others.
func (o *Objects) assignL3(spec *ebpf.CollectionSpec) (p l3Programs, err error) {
	all, shared := o.MapsByName(), map[string]*ebpf.Map{}
	all[".bss"] = o.variables
	for name := range spec.Maps {
		if strings.HasPrefix(name, ".rodata") {
			continue
		}
		m := all[plain(name)]
		if m == nil {
			return p, fmt.Errorf("map %s: not in the datapath", name)
		}
		shared[name] = m
	}
	return p, spec.LoadAndAssign(&p, &ebpf.CollectionOptions{MapReplacements: shared})
}

// loadL3 loads the programs of wires without a link-layer header when they are first asked for.
func (d *Datapath) loadL3() (l3Programs, error) {
	d.l3Mu.Lock()
	defer d.l3Mu.Unlock()
	if d.l3.FromWire != nil {
		return d.l3, nil
	}
	o := d.options
	spec, err := configured(&o)
	if err != nil {
		return l3Programs{}, err
	}
	loaded, err := d.assignL3(spec)
	if err != nil {
		return l3Programs{}, loadError("programs of wires without a link-layer header", err)
	}
	d.l3 = loaded
	return loaded, nil
}
