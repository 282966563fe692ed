package bpf

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"myelin/bpf/fold"
)

// Programs are those that every node loads. late.go has the others.
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

// sections are the maps of variables.
type sections struct {
	Epochs    *ebpf.Map `ebpf:".data.epochs"`
	OwnFilter *ebpf.Map `ebpf:".data.own_filter"`
	Frontends *ebpf.Map `ebpf:".data.frontend_filter"`
	Variables *ebpf.Map `ebpf:".bss"`
}

// Assign loads the collection.
func (o *Objects) Assign(spec *ebpf.CollectionSpec, options *ebpf.CollectionOptions) error {
	all := struct {
		*DatapathMaps
		*DatapathVariables
		*Programs
		sections
	}{DatapathMaps: &o.DatapathMaps, DatapathVariables: &o.DatapathVariables, Programs: &o.Programs}
	if err := foldSettings(spec, reflect.TypeFor[Programs]()); err != nil {
		return err
	}
	err := spec.LoadAndAssign(&all, options)
	o.set(all.sections)
	return err
}

// foldSettings makes constants of the settings in the programs that a struct type has fields for. A packet on the fast
// path reads seven of them.
func foldSettings(spec *ebpf.CollectionSpec, programs reflect.Type) error {
	const name = ".rodata"
	data, isBytes := spec.Maps[name].Contents[0].Value.([]byte)
	if !isBytes {
		return fmt.Errorf("fold settings: %s has no contents", name)
	}
	data = slices.Clone(data)
	for _, v := range spec.Variables {
		if v.SectionName == name {
			copy(data[v.Offset:], v.Value)
		}
	}
	for _, field := range reflect.VisibleFields(programs) {
		p := spec.Programs[field.Tag.Get("ebpf")]
		if p == nil {
			continue
		}
		folded, err := fold.Constants(p.Instructions, name, data)
		if err != nil {
			return fmt.Errorf("fold settings of %s: %w", p.Name, err)
		}
		p.Instructions = folded
	}
	return nil
}

// AssignMaps loads the maps of the collection, and none of its programs: most of the time that loading takes is the
// verifier's.
func (o *Objects) AssignMaps(spec *ebpf.CollectionSpec) error {
	all := struct {
		*DatapathMaps
		*DatapathVariables
		sections
	}{DatapathMaps: &o.DatapathMaps, DatapathVariables: &o.DatapathVariables}
	err := spec.LoadAndAssign(&all, nil)
	o.set(all.sections)
	return err
}

func (o *Objects) set(s sections) {
	o.Epochs, o.OwnFilter, o.FrontendFilter, o.variables = s.Epochs, s.OwnFilter, s.Frontends, s.Variables
	o.filterMu = new(sync.Mutex)
}

// Close closes the descriptors.
func (o *Objects) Close() error {
	return closeAll(&o.DatapathMaps, &o.Programs, o.Epochs, o.OwnFilter, o.FrontendFilter, o.variables)
}
