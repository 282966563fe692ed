package bigtcp

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/vishvananda/netlink"

	"myelin/internal/durable"
	"myelin/route"
)

// File is the name of the agent's file of sizes, in its run directory.
const File = "bigtcp.json"

// original is what a device had before an agent changed it.
type original struct {
	Index int         `json:"index"` // of the device, which tells whether it is still the same
	Sizes route.Sizes `json:"sizes"`
}

// originals are those of all wires by name, kept in a file so that later agents and clean-up can restore them. Pod
// links are made by agents, and have the kernel's sizes without BIG TCP.
type originals struct{ *durable.Map[original] }

func openOriginals(file string) (*originals, error) {
	known, err := durable.OpenMap[original](file)
	if err != nil {
		return nil, fmt.Errorf("original sizes of devices: %w", err)
	}
	return &originals{known}, nil
}

// names are those of the devices that are known.
func (o *originals) names() map[string]bool {
	names := map[string]bool{}
	for name := range o.All() {
		names[name] = true
	}
	return names
}

// get returns what is known of a device.
func (o *originals) get(name string, index int) (sizes route.Sizes, ok bool) {
	known, ok := o.Get(name)
	return known.Sizes, ok && known.Index == index
}

// keep writes down what a device has, once.
func (o *originals) keep(name string, index int, sizes route.Sizes) error {
	err := o.Change(func(known map[string]original) bool {
		if old, ok := known[name]; ok && old.Index == index {
			return false
		}
		known[name] = original{index, sizes}
		return true
	})
	if err != nil {
		return fmt.Errorf("keep original sizes: %w", err)
	}
	return nil
}

// forget is called when a device has its sizes back.
func (o *originals) forget(name string) error {
	err := o.Change(func(known map[string]original) bool {
		_, ok := known[name]
		delete(known, name)
		return ok
	})
	if err != nil {
		return fmt.Errorf("forget original sizes: %w", err)
	}
	return nil
}

// Restore gives devices the sizes that are kept in file, and removes it. It returns what was written. A device that is
// gone, or was made anew, is left out.
func Restore(k *route.Kernel, file string) (written []string, err error) {
	o, err := openOriginals(file)
	if err != nil {
		return nil, err
	}
	var errs []error
	all := o.All()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		known := all[name]
		link, err := k.LinkByIndex(known.Index)
		var missing netlink.LinkNotFoundError
		if errors.As(err, &missing) || err == nil && link.Attrs().Name != name {
			continue
		}
		if err == nil {
			_, err = set(k.Handle, link, known.Sizes)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("restore sizes of %s: %w", name, err))
			continue
		}
		written = append(written, "GSO and GRO sizes of "+name)
	}
	if err := errors.Join(errs...); err != nil {
		return written, err
	}
	return written, durable.Remove(file)
}
