package httpproxy

import "strings"

// normalPath normalises the path of a target in origin form and says whether it is valid. What is ambiguous is
// refused: encoded slashes, backslashes and NULs, backslashes, and parameters of dot segments. Others are brought to
// the one form that rules see and that is forwarded: encoded unreserved characters are decoded (RFC 3986, section
// 6.2.2.2), then empty segments and dot segments are removed. The result is the same string if nothing changes. The
// query is validated and stays as it is.
func normalPath(target string) (string, bool) {
	path, query := target, ""
	if i := strings.IndexByte(target, '?'); i >= 0 {
		path, query = target[:i], target[i:]
	}
	if path == "" || path[0] != '/' {
		return "", false
	}
	for i := 0; i < len(query); i++ {
		if !targetBytes[query[i]] {
			return "", false
		}
	}
	changes := false
	for i := 0; i < len(path); i++ {
		c := path[i]
		switch {
		case !targetBytes[c] || c == '\\':
			return "", false
		case c == '%':
			decoded, ok := escape(path[i:])
			if !ok || decoded == '/' || decoded == '\\' || decoded == 0 {
				return "", false
			}
			changes = changes || unreserved[decoded]
		case c == '/' && i+1 < len(path) && (path[i+1] == '/' || path[i+1] == '.'):
			changes = true
		}
	}
	if !changes {
		return target, true
	}
	clean, ok := removeSegments(decodeUnreserved(path))
	return clean + query, ok
}

func decodeUnreserved(path string) string {
	out := make([]byte, 0, len(path))
	for i := 0; i < len(path); i++ {
		if path[i] == '%' {
			if decoded, _ := escape(path[i:]); unreserved[decoded] {
				out = append(out, decoded)
				i += 2
				continue
			}
		}
		out = append(out, path[i])
	}
	return string(out)
}

// removeSegments removes empty segments and dot segments; those that lead above the root are removed too.
func removeSegments(path string) (string, bool) {
	segments := strings.Split(path[1:], "/")
	out := make([]byte, 0, len(path))
	for i, segment := range segments {
		last := i == len(segments)-1
		if strings.HasPrefix(segment, ".;") || strings.HasPrefix(segment, "..;") {
			return "", false
		}
		switch segment {
		case "", ".":
			if last {
				out = append(out, '/')
			}
		case "..":
			out = out[:max(strings.LastIndexByte(string(out), '/'), 0)]
			if last {
				out = append(out, '/')
			}
		default:
			out = append(out, '/')
			out = append(out, segment...)
		}
	}
	return string(out), true
}

// escape decodes the percent-encoded byte at the beginning of a string.
func escape(s string) (byte, bool) {
	if len(s) < 3 {
		return 0, false
	}
	high, low := hexValue(s[1]), hexValue(s[2])
	return high<<4 | low, high < 16 && low < 16
}

// hexValue is 255 if a byte is no hexadecimal digit.
func hexValue(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 255
}
