package maps

import (
	"testing"

	"myelin/cluster/clustertest"
	"myelin/service"
	"myelin/service/servicetest"
)

const (
	laterName       = "kind: Service\nmetadata: {name: b}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"
	firstName       = "kind: Service\nmetadata: {name: a}\nspec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}\n"
	twoOfOneAddress = firstName + "---\n" + laterName
)

// A new agent reads Services in any order: the address stays with the Service that has it in the kernel.
func TestAddressStaysOverRestart(t *testing.T) {
	r, dir := newRig(t, service.Config{}, nil), t.TempDir()
	first := servicetest.New(t, service.Config{}, dir)
	r.Set(t, clustertest.Parse(t, laterName)) // gets the same number in both
	first.Set(t, clustertest.Parse(t, laterName))
	if err := r.sync(); err != nil {
		t.Fatal(err)
	}
	held, err := HeldAddresses(r.datapath)
	if err != nil || len(held) != 1 {
		t.Fatalf("the kernel has %v, %v", held, err)
	}
	for _, c := range []struct {
		name string
		held map[service.L4Addr]uint32
		want string
	}{{"the kernel has it", held, "b"}, {"the kernel has nothing", nil, "a"}} {
		t.Run(c.name, func(t *testing.T) {
			next := servicetest.New(t, service.Config{}, dir)
			next.Held = c.held
			next.Set(t, clustertest.Parse(t, twoOfOneAddress))
			for f := range next.Desired.Frontends.All(next.DB.ReadTxn()) {
				if f.Service.Name != c.want {
					t.Errorf("%s is %s's, want %s's", f.L4(), f.Service, c.want)
				}
			}
			if next.Held != nil {
				t.Error("what the agent before had is still in memory")
			}
		})
	}
}
