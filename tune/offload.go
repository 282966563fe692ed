package tune

import (
	"bytes"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of linux/ethtool.h about features, and the set of their names.
const (
	getStrings  = 0x1b
	getSetInfo  = 0x37
	getFeatures = 0x3a
	setFeatures = 4 // ETH_SS_FEATURES
	nameSize    = 32
)

// offloads are the features that a flag of ethtool(8) switches: one of them is enough.
func offloads() map[string][]string {
	return map[string][]string{
		"rx": {"rx-checksum"}, "tx": {"tx-checksum-ipv4", "tx-checksum-ip-generic", "tx-checksum-ipv6"},
		"tso": {"tx-tcp-segmentation", "tx-tcp6-segmentation"}, "gso": {"tx-generic-segmentation"}, "gro": {"rx-gro"},
		"lro": {"rx-lro"},
	}
}

// switchable reports whether the driver lets an offload be switched.
func switchable(device, name string) (bool, error) {
	info, err := ethtool(device, getSetInfo, []uint32{0, 0, 1 << setFeatures, 0, 0}) // the mask has 64 bits, at 8 bytes
	if err != nil {
		return false, err
	}
	count := int(info[4])
	// struct ethtool_gstrings: command, set, count, names of 32 bytes.
	names, err := ethtool(device, getStrings, append([]uint32{0, setFeatures, uint32(count)},
		make([]uint32, count*nameSize/4)...))
	if err != nil {
		return false, err
	}
	blocks := (count + 31) / 32
	// struct ethtool_gfeatures: command, number of blocks; of each block: available, requested, active, never changed.
	features, err := ethtool(device, getFeatures, append([]uint32{0, uint32(blocks)}, make([]uint32, 4*blocks)...))
	if err != nil {
		return false, err
	}
	text := unsafe.Slice((*byte)(unsafe.Pointer(&names[0])), 4*len(names))[12:]
	for i := range count {
		feature := unix.ByteSliceToString(bytes.TrimRight(text[i*nameSize:(i+1)*nameSize], "\x00"))
		for _, wanted := range offloads()[name] {
			if feature == wanted && features[2+4*(i/32)]&(1<<(i%32)) != 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// fixed is an error for an offload that the driver does not let be switched: it is as good as none.
func fixed(device, name string) error {
	if _, ok := offloads()[name]; !ok {
		return nil
	}
	ok, err := switchable(device, name)
	if err != nil || ok {
		return err
	}
	return fmt.Errorf("%s of %s is fixed: %w", name, device, unix.ENOENT)
}
