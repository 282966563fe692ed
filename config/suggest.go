package config

import (
	"fmt"
	"strings"
)

// suggest answers an unknown key with what its writer may have meant, or "".
func suggest(key string, known []string) string {
	if now := formerName(key); now != "" {
		return fmt.Sprintf("its name is now %s", now)
	}
	if len(key) > 64 {
		return "" // too long for a known key, and slow to compare
	}
	best, distance := "", len(key)/4+2
	for _, k := range known {
		k = strings.TrimSuffix(k, ".*")
		d := edits(strings.ToLower(key), strings.ToLower(k))
		// Often only the last part of a key is remembered.
		if last := k[strings.LastIndexByte(k, '.')+1:]; last != k && len(key) > 3 && strings.EqualFold(last, key) {
			d = 1
		}
		if d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// formerName knows keys that Cilium renamed or removed.
func formerName(key string) string {
	switch key {
	case "tunnel":
		return "routingMode and tunnelProtocol"
	case "nativeRoutingCIDR":
		return "ipv4NativeRoutingCIDR"
	case "masquerade":
		return "enableIPv4Masquerade and enableIPv6Masquerade"
	case "hostServices.enabled":
		return "socketLB.enabled"
	case "encryption.interface":
		return "encryption.ipsec.interface"
	}
	return ""
}

// edits is the Levenshtein distance in bytes; keys are ASCII.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
