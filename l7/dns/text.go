package dns

import "strconv"

// TypeName is the name of a type of records (RFC 1035, section 3.2.2, and later), "TYPE65280" for one without (RFC
// 3597, section 5).
func TypeName(t uint16) string {
	names := map[uint16]string{1: "A", 2: "NS", 5: "CNAME", 6: "SOA", 12: "PTR", 15: "MX", 16: "TXT", 28: "AAAA",
		33: "SRV", 35: "NAPTR", 39: "DNAME", 41: "OPT", 43: "DS", 46: "RRSIG", 47: "NSEC", 48: "DNSKEY", 64: "SVCB",
		65: "HTTPS", 252: "AXFR", 255: "ANY", 257: "CAA"}
	if name, ok := names[t]; ok {
		return name
	}
	return "TYPE" + strconv.Itoa(int(t))
}

// CodeName is the name of a response code (RFC 1035, section 4.1.1), as Hubble writes it.
func CodeName(code uint8) string {
	names := map[uint8]string{0: "No Error", 1: "Format Error", 2: "Server Failure", 3: "Non-Existent Domain",
		4: "Not Implemented", 5: "Query Refused"}
	if name, ok := names[code]; ok {
		return name
	}
	return strconv.Itoa(int(code))
}
