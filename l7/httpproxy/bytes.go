package httpproxy

import (
	"strings"
	"unsafe"
)

// byteSet says which bytes are in it.
type byteSet [256]bool

func bytesOf(characters string) (set byteSet) {
	for i := 0; i < len(characters); i++ {
		set[characters[i]] = true
	}
	return set
}

const alphanumeric = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

var (
	tokenBytes  = bytesOf("!#$%&'*+-.^_`|~" + alphanumeric)     // RFC 9110, section 5.6.2
	unreserved  = bytesOf("-._~" + alphanumeric)                // RFC 3986, section 2.3
	hostBytes   = bytesOf("-._~%!$&'()*+,;=:[]" + alphanumeric) // RFC 3986, section 3.2.2, with the port
	valueBytes  = rangeOf(' ', 255, "\t", "\x7f")               // RFC 9110, section 5.5
	targetBytes = rangeOf('!', '~', "", "#")                    // what is visible; RFC 3986, and what clients send
)

// rangeOf has the bytes from first to last, and others, but not those that are excepted.
func rangeOf(first, last int, others, except string) byteSet {
	set := bytesOf(others)
	for c := first; c <= last; c++ {
		set[c] = strings.IndexByte(except, byte(c)) < 0
	}
	return set
}

func validToken(s string) bool {
	for i := 0; i < len(s); i++ {
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

func validValue(s string) bool {
	for i := 0; i < len(s); i++ {
		if !valueBytes[s[i]] {
			return false
		}
	}
	return true
}

func validHost(s string) bool {
	for i := 0; i < len(s); i++ {
		if !hostBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

// view is a string of bytes without copying them. It is valid until they change.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// trim removes spaces and tabs around a value.
func trim(s string) string {
	for s != "" && (s[0] == ' ' || s[0] == '\t') {
		s = s[1:]
	}
	for s != "" && (s[len(s)-1] == ' ' || s[len(s)-1] == '\t') {
		s = s[:len(s)-1]
	}
	return s
}

func equalFold(a, b string) bool { return len(a) == len(b) && strings.EqualFold(a, b) }
