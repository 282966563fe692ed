package tune

import (
	"fmt"
	"math/big"
	"strings"
)

// parseMask reads a mask of CPUs, as the kernel prints it: 32 bits in hexadecimal, the highest first, by comma.
func parseMask(s string) *big.Int {
	mask, ok := new(big.Int).SetString(strings.ReplaceAll(s, ",", ""), 16)
	if !ok {
		return new(big.Int)
	}
	return mask
}

func maskOf(cpus []int) *big.Int {
	mask := new(big.Int)
	for _, c := range cpus {
		mask.SetBit(mask, c, 1)
	}
	return mask
}

// formatMask is what the kernel takes.
func formatMask(mask *big.Int) string {
	digits := fmt.Sprintf("%x", mask)
	var parts []string
	for len(digits) > 8 {
		parts = append([]string{digits[len(digits)-8:]}, parts...)
		digits = digits[:len(digits)-8]
	}
	return strings.Join(append([]string{digits}, parts...), ",")
}

// wantMask recommends a mask; one that is only written in another form is left as it is.
func wantMask(cpus []int) func(string) string {
	want := maskOf(cpus)
	return func(current string) string {
		if parseMask(current).Cmp(want) == 0 {
			return current
		}
		return formatMask(want)
	}
}
