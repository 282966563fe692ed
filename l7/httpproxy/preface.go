package httpproxy

import "bytes"

// preface is what clients of HTTP/2 send first (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// hasPreface reads until the first bytes are, or are not, those of HTTP/2.
func (s *session) hasPreface() (bool, error) {
	for {
		b := s.client.bytes()
		if len(b) >= len(preface) {
			return bytes.HasPrefix(b, []byte(preface)), nil
		}
		if !bytes.HasPrefix([]byte(preface), b) {
			return false, nil
		}
		if err := s.client.fill(); err != nil {
			return false, err
		}
	}
}
