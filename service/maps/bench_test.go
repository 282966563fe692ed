package maps

import (
	"fmt"
	"testing"

	"myelin/cluster"
	"myelin/service"
	"myelin/service/servicetest"
)

func large() map[string]uint32 {
	return map[string]uint32{"frontends": 1 << 17, "backend_slots": 1 << 17, "backends": 1 << 18, "affinities": 1 << 16}
}

// BenchmarkKernelFull writes all from nothing.
func BenchmarkKernelFull(b *testing.B) {
	o := servicetest.Many(10000, 10)
	w := servicetest.New(b, service.Config{}, "")
	empty := w.DB.ReadTxn()
	w.Set(b, o)
	for b.Loop() {
		b.StopTimer()
		r := newRig(b, service.Config{}, large())
		r.Cluster, r.seen = w, empty
		r.agent(b, r.datapath)
		b.StartTimer()
		if err := r.sync(); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		r.datapath.Close()
		b.StartTimer()
	}
}

// BenchmarkKernelAgain is an agent that begins where all is as it should be.
func BenchmarkKernelAgain(b *testing.B) {
	r := newRig(b, service.Config{}, large())
	r.Set(b, servicetest.Many(10000, 10))
	if err := r.sync(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		r.agent(b, r.datapath)
		r.again(b)
	}
}

// BenchmarkKernelOne is what the kernel's part of one changed backend costs:
// the difference to it in BenchmarkOne is what finding the rows costs.
func BenchmarkKernelOne(b *testing.B) {
	for _, size := range [][2]int{{10000, 10}, {1, 5000}} {
		b.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(b *testing.B) {
			o := servicetest.Many(size[0], size[1])
			r := newRig(b, service.Config{}, large())
			r.Set(b, o)
			if err := r.sync(); err != nil {
				b.Fatal(err)
			}
			parts := []*cluster.EndpointSlice{servicetest.With(o.Slices[0], 5, servicetest.Drain), o.Slices[0]}
			f := &frontendOps{r.Kernel}
			i := 0
			for b.Loop() {
				b.StopTimer()
				r.PutSlice(b, parts[i%2])
				i++
				now := r.DB.ReadTxn()
				row, rev, _ := r.Desired.Frontends.Get(now,
					service.FrontendByAddress(service.L4(o.Services[0].ClusterIPs[0], 80, service.TCP)))
				b.StartTimer()
				if err := f.Update(b.Context(), now, rev, row); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
