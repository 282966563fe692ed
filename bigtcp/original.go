package bigtcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"

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

// originals are those of all wires, kept in a file so that later agents and clean-up can restore them. Pod links are
// made by agents, and have the kernel's sizes without BIG TCP.
type originals struct {
	file string

	mu    sync.Mutex
	known map[string]original // by name of the device
}

// openOriginals reads the file; none is an empty one.
func openOriginals(file string) (*originals, error) {
	o := &originals{file: file, known: map[string]original{}}
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &o.known)
	}
	if err != nil {
		return nil, fmt.Errorf("read original sizes of devices from %s: %w", file, err)
	}
	return o, nil
}

// names are those of the devices that are known.
func (o *originals) names() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	names := map[string]bool{}
	for name := range o.known {
		names[name] = true
	}
	return names
}

// get returns what is known of a device.
func (o *originals) get(name string, index int) (sizes route.Sizes, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	known, ok := o.known[name]
	return known.Sizes, ok && known.Index == index
}

// keep writes down what a device has, once.
func (o *originals) keep(name string, index int, sizes route.Sizes) error {
	if _, ok := o.get(name, index); ok {
		return nil
	}
	return o.change(func(known map[string]original) { known[name] = original{index, sizes} })
}

// forget is called when a device has its sizes back.
func (o *originals) forget(name string) error {
	return o.change(func(known map[string]original) { delete(known, name) })
}

func (o *originals) change(change func(map[string]original)) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := maps.Clone(o.known)
	change(next)
	if maps.Equal(next, o.known) {
		return nil
	}
	if err := o.write(next); err != nil {
		return fmt.Errorf("keep original sizes: %w", err)
	}
	o.known = next
	return nil
}

func (o *originals) write(known map[string]original) error {
	if len(known) == 0 {
		return durable.Remove(o.file)
	}
	data, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	return durable.Write(o.file, append(data, '\n'))
}

// Restore gives devices the sizes that are kept in file, and removes it. It returns what was written. A device that is
// gone, or was made anew, is left out.
func Restore(k *route.Kernel, file string) (written []string, err error) {
	o, err := openOriginals(file)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.known)) {
		known := o.known[name]
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
