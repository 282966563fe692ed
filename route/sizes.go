package route

import "github.com/vishvananda/netlink"

// Sizes are the largest packets of TCP that a device takes from the kernel's stack (GSO), and makes of what it receives
// (GRO), in bytes by family. 0: the kernel has no such size.
type Sizes struct {
	GSO6 int `json:"gso6"` // gso_max_size; for IPv4, too, before kernel 6.3
	GRO6 int `json:"gro6"` // gro_max_size, kernel 5.19; for IPv4, too, before 6.3
	GSO4 int `json:"gso4"` // gso_ipv4_max_size, kernel 6.3
	GRO4 int `json:"gro4"` // gro_ipv4_max_size, kernel 6.3
}

// SizesOf are those of a link.
func SizesOf(a *netlink.LinkAttrs) Sizes {
	return Sizes{GSO6: int(a.GSOMaxSize), GRO6: int(a.GROMaxSize), GSO4: int(a.GSOIPv4MaxSize),
		GRO4: int(a.GROIPv4MaxSize)}
}
