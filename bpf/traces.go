package bpf

import (
	"container/heap"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Traces reads the events that the datapath keeps in the maps traces and dns_reports, in place. It is not safe for
// concurrent use.
type Traces struct {
	mem   [][]byte
	slots uint64 // of each CPU, a power of 2; one more before them has the sequence number of the newest event
	cpus  []traceCPU
	ready traceHeap // CPUs with an event that is not read, the oldest first
}

// traceCPU is what was read of a CPU's events.
type traceCPU struct {
	base    *DatapathTraceSlot
	reports *DatapathDnsReport // of the slot at base; nil: there are none
	read    uint64             // sequence number of the last event
	next    DatapathEvent
	dns     DatapathDnsReport // of an EVENT_DNS
}

const (
	traceSlotSize = unsafe.Sizeof(DatapathTraceSlot{})
	dnsReportSize = unsafe.Sizeof(DatapathDnsReport{})
)

// OpenTraces maps the maps traces and dns_reports into memory. slots is Settings.TraceSlots. What the maps hold already
// is read as well. reports with one element is that of a datapath without Settings.DnsReports.
func OpenTraces(m, reports *ebpf.Map, slots uint32) (*Traces, error) {
	if slots == 0 || m.ValueSize() != uint32(traceSlotSize) || reports.ValueSize() != uint32(dnsReportSize) {
		return nil, fmt.Errorf("read map traces: %d slots per CPU of %d bytes, with reports of %d bytes", slots,
			m.ValueSize(), reports.ValueSize())
	}
	t := &Traces{slots: uint64(slots), cpus: make([]traceCPU, m.MaxEntries()/(slots+1))}
	mem, err := t.open(m, traceSlotSize)
	if err != nil {
		return nil, err
	}
	for i := range t.cpus {
		t.cpus[i].base = (*DatapathTraceSlot)(unsafe.Pointer(&mem[uintptr(i)*uintptr(slots+1)*traceSlotSize]))
	}
	if reports.MaxEntries() < m.MaxEntries() {
		return t, nil
	}
	if mem, err = t.open(reports, dnsReportSize); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	for i := range t.cpus {
		t.cpus[i].reports = (*DatapathDnsReport)(unsafe.Pointer(&mem[uintptr(i)*uintptr(slots+1)*dnsReportSize]))
	}
	return t, nil
}

// open maps an array with elements of a size into memory, until Close.
func (t *Traces) open(m *ebpf.Map, element uintptr) ([]byte, error) {
	page := os.Getpagesize()
	size := (int(m.MaxEntries())*int(element) + page - 1) / page * page
	mem, err := unix.Mmap(m.FD(), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map the events of %s into memory: %w", m, err)
	}
	t.mem = append(t.mem, mem)
	return mem, nil
}

// Close unmaps the memory.
func (t *Traces) Close() (err error) {
	for _, mem := range t.mem {
		err = errors.Join(err, unix.Munmap(mem))
	}
	return err
}

func (c *traceCPU) slot(i uint64) *DatapathTraceSlot {
	return (*DatapathTraceSlot)(unsafe.Add(unsafe.Pointer(c.base), uintptr(i)*traceSlotSize))
}

// copy copies the event in a slot, and says whether that is all that there is of it.
func (c *traceCPU) copy(i uint64) bool {
	if c.next = c.slot(i).Event; c.next.Type != uint8(DatapathEventTypeEVENT_DNS) {
		return true
	}
	if c.reports == nil {
		return false
	}
	c.dns = *(*DatapathDnsReport)(unsafe.Add(unsafe.Pointer(c.reports), uintptr(i)*dnsReportSize))
	return true
}

// advance copies the CPU's next event. It returns false if there is none, and how many were overwritten before they
// were read.
func (c *traceCPU) advance(slots uint64) (ok bool, missed uint64) {
	for {
		newest := atomic.LoadUint64(&c.base.Seq)
		if newest < c.read { // the map was cleared
			c.read = 0
		}
		// The slot of the oldest event is the one that is written next.
		if oldest := newest - min(newest, slots-1); c.read < oldest {
			missed += oldest - c.read
			c.read = oldest
		}
		if c.read == newest {
			return false, missed
		}
		c.read++
		i := 1 + (c.read-1)&(slots-1)
		s := c.slot(i)
		if atomic.LoadUint64(&s.Seq) == c.read && c.copy(i) && atomic.LoadUint64(&s.Seq) == c.read {
			return true, missed
		}
		missed++ // overwritten meanwhile
	}
}

// Fill is how many events all CPUs have written since they were read, as a share of the slots of one CPU: up to 1, none
// was overwritten.
func (t *Traces) Fill() float64 {
	unread := uint64(0)
	for i := range t.cpus {
		c := &t.cpus[i]
		newest := atomic.LoadUint64(&c.base.Seq)
		unread += newest - min(newest, c.read)
	}
	return float64(unread) / float64(t.slots)
}

// Read calls fn for each event that is not read yet and not newer than until (CLOCK_MONOTONIC, nanoseconds), those of
// all CPUs in the order of time. dns is what an EVENT_DNS says of the message, and not valid for other events. fn must
// keep neither. It returns how many were overwritten before they were read.
func (t *Traces) Read(until uint64, fn func(e *DatapathEvent, dns *DatapathDnsReport)) (missed uint64) {
	waiting := make(map[*traceCPU]bool, len(t.ready))
	for _, c := range t.ready {
		waiting[c] = true
	}
	for i := range t.cpus {
		c := &t.cpus[i]
		if waiting[c] {
			continue
		}
		ok, n := c.advance(t.slots)
		missed += n
		if ok {
			t.ready = append(t.ready, c)
		}
	}
	heap.Init(&t.ready)
	for len(t.ready) > 0 && t.ready[0].next.TimeNs <= until {
		c := t.ready[0]
		fn(&c.next, &c.dns)
		ok, n := c.advance(t.slots)
		missed += n
		if ok {
			heap.Fix(&t.ready, 0)
		} else {
			heap.Pop(&t.ready)
		}
	}
	return missed
}

type traceHeap []*traceCPU

func (h traceHeap) Len() int           { return len(h) }
func (h traceHeap) Less(i, j int) bool { return h[i].next.TimeNs < h[j].next.TimeNs }
func (h traceHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements heap.Interface.
func (h *traceHeap) Push(x any) { *h = append(*h, x.(*traceCPU)) }

// Pop implements heap.Interface.
func (h *traceHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}

// TraceSlots is how many events each CPU has to keep so that an agent that keeps capacity events of all CPUs finds as
// many, also where a few CPUs have all the load: as many, but a share of four times as many on machines with more than
// four CPUs. At 100,000 events a second, 4,096 slots are full after 40 ms.
func TraceSlots(capacity int) uint32 {
	const least, few = 256, 4
	cpus, err := presentCPUs()
	if err != nil || cpus < few {
		cpus = few
	}
	return powerOfTwo(uint32(max(least, few*(capacity+1)/cpus)))
}

// presentCPUs is one more than the highest number of a CPU that the machine has, which may be far less than the kernel
// has room for. The events of CPUs that are added later are lost, and counted.
func presentCPUs() (int, error) {
	const path = "/sys/devices/system/cpu/present"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %w", err)
	}
	list := strings.TrimSpace(string(text))
	n, err := strconv.Atoi(list[strings.LastIndexAny(list, ",-")+1:])
	if err != nil {
		return 0, fmt.Errorf("count CPUs: %s: %w", path, err)
	}
	return n + 1, nil
}
