package sockdiag

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/containernetworking/plugins/pkg/ns"
)

// Destroyer ends connected UDP sockets whose backend is gone, inside the kernel: a BPF program that the kernel runs for
// each UDP socket of a namespace calls bpf_sock_destroy. It is not safe for concurrent use.
type Destroyer struct {
	objects struct {
		Destroy *ebpf.Program  `ebpf:"destroy"`
		Ended   *ebpf.Variable `ebpf:"ended"`
	}
	iterator *link.Iter
}

// NewDestroyer loads the program, which uses the datapath's maps of the original destinations of sockets and of
// backends. Errors wrap ebpf.ErrNotSupported if the kernel lacks bpf_sock_destroy (before 6.5), iterators over UDP
// sockets, or its own types (CONFIG_DEBUG_INFO_BTF).
func NewDestroyer(origins, backends *ebpf.Map) (*Destroyer, error) {
	spec, err := loadDestroy()
	if err != nil {
		return nil, fmt.Errorf("read embedded program that ends sockets: %w", err)
	}
	maps := map[string]*ebpf.Map{"origins": origins, "backends": backends}
	for name, m := range maps {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	d := &Destroyer{}
	if err := spec.LoadAndAssign(&d.objects, &ebpf.CollectionOptions{MapReplacements: maps}); err != nil {
		return nil, fmt.Errorf("load program that ends sockets: %w", err)
	}
	if d.iterator, err = link.AttachIter(link.IterOptions{Program: d.objects.Destroy}); err != nil {
		return nil, fmt.Errorf("attach program that ends sockets: %w", errors.Join(err, d.objects.Destroy.Close()))
	}
	return d, nil
}

// Close unloads the program.
func (d *Destroyer) Close() error { return errors.Join(d.iterator.Close(), d.objects.Destroy.Close()) }

// Destroy ends the connected UDP sockets of the network namespace at path, of both families, whose row in origins names
// a backend without a row, and returns how many. Their applications get the errors of Namespace.Destroy. Path and
// errors are those of Open. The kernel walks the UDP sockets of the namespace once.
func (d *Destroyer) Destroy(path string) (int, error) {
	var before, after uint64
	if err := d.objects.Ended.Get(&before); err != nil {
		return 0, fmt.Errorf("read how many sockets were ended: %w", err)
	}
	sockets, err := d.open(path)
	if err != nil {
		return 0, fmt.Errorf("begin a walk over UDP sockets: %w", err)
	}
	_, err = io.Copy(io.Discard, sockets) // reading runs the program, which writes nothing
	if err = errors.Join(err, sockets.Close(), d.objects.Ended.Get(&after)); err != nil {
		return int(after - before), fmt.Errorf("go through UDP sockets of network namespace %q: %w", path, err)
	}
	return int(after - before), nil
}

// open starts a walk over the sockets of the calling thread's current namespace.
func (d *Destroyer) open(path string) (sockets io.ReadCloser, err error) {
	if path == "" {
		return d.iterator.Open()
	}
	err = ns.WithNetNSPath(path, func(ns.NetNS) error {
		sockets, err = d.iterator.Open()
		return err
	})
	if errors.As(err, &ns.NSPathNotExistErr{}) {
		return nil, fmt.Errorf("%w: %w", os.ErrNotExist, err)
	}
	return sockets, err
}
