package httpproxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// FuzzRequest: what is forwarded is parsed by net/http to what rules were evaluated on, and it is not changed again if
// it comes to a second proxy.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET http://b/a/../c?d HTTP/1.1\r\nHost: a\r\nConnection: x, close\r\nX: 1\r\n\r\n",
		"POST /%61//b HTTP/1.0\r\nContent-Length: 3\r\nConnection: keep-alive\r\n\r\n",
		"GET /chat HTTP/1.1\r\nHost: a\r\nUpgrade: websocket, h2c\r\nConnection: Upgrade\r\nTE: trailers\r\n\r\n",
		"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		size := headEnd(b, 0)
		if size == 0 {
			return
		}
		var h head
		if h.parseRequest(b[:size]) != 0 {
			return
		}
		var r Request
		h.request(&r, "")
		forwarded := h.append(nil)
		if !h.changed && !bytes.Equal(forwarded, b[:size]) {
			t.Fatalf("unchanged, but forwarded as %q", forwarded)
		}
		parsed, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(forwarded)))
		if err != nil {
			if !goRefuses(&h) {
				t.Fatalf("forwarded %q: %v", forwarded, err)
			}
			return
		}
		if parsed.Method != r.Method || parsed.Host != r.Host || r.Method != "CONNECT" && parsed.RequestURI != r.Path {
			t.Fatalf("evaluated %q %q %q, forwarded %q", r.Method, r.Host, r.Path, forwarded)
		}
		if want := max(h.length, 0); !h.chunked && parsed.ContentLength != want ||
			h.chunked != (len(parsed.TransferEncoding) > 0) {
			t.Fatalf("body of %q: %d %v", forwarded, parsed.ContentLength, parsed.TransferEncoding)
		}
		compareHeaders(t, &h, parsed)
		var again head
		if p := again.parseRequest(bytes.Clone(forwarded)); p != 0 || again.first != h.first || again.host != h.host {
			t.Fatalf("forwarded %q, the second time %d %q", forwarded, p, again.append(nil))
		}
	})
}

// goRefuses says whether net/http refuses hosts and trailer names that it need not refuse.
func goRefuses(h *head) bool {
	hasTrailer := func(header Header) bool { return kindOf(header.Name) == fieldTrailer }
	return strings.ContainsAny(h.host, "%[]:") || slices.ContainsFunc(h.headers, hasTrailer)
}

// compareHeaders compares headers by name; net/http takes some out of its map.
func compareHeaders(t *testing.T, h *head, parsed *http.Request) {
	want := http.Header{}
	for _, header := range h.headers {
		switch kindOf(header.Name) {
		case fieldHost, fieldTransferEncoding, fieldTrailer, fieldContentLength:
			continue
		}
		want.Add(header.Name, header.Value)
	}
	for _, name := range []string{"Content-Length", "Trailer"} {
		parsed.Header.Del(name)
	}
	if len(want["Cache-Control"]) == 0 { // made of Pragma by net/http
		parsed.Header.Del("Cache-Control")
	}
	var a, b bytes.Buffer
	want.Write(&a)
	parsed.Header.Write(&b)
	if a.String() != b.String() {
		t.Fatalf("evaluated %q, forwarded %q", a.String(), b.String())
	}
}

// FuzzChunks: the body that net/http reads of what is forwarded is the one that it reads of the original, and the way
// in which the bytes arrive does not matter.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("3\r\nabc\r\n0\r\n\r\n"), uint8(1))
	f.Add([]byte("0003;a=b\r\nabc\r\n0;c\r\nA: b\r\n\r\nrest"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		whole, rest, ok := runChunks(b, len(b))
		pieces, restOfPieces, okOfPieces := runChunks(b, int(step)+1)
		if ok != okOfPieces || ok && (!bytes.Equal(whole, pieces) || !bytes.Equal(rest, restOfPieces)) {
			t.Fatalf("at once %v %q, in pieces %v %q", ok, whole, okOfPieces, pieces)
		}
		if !ok {
			return
		}
		original, err := readChunks(b)
		if err != nil {
			t.Fatalf("net/http refuses %q: %v", b, err)
		}
		forwarded, err := readChunks(whole)
		if err != nil || !bytes.Equal(original, forwarded) {
			t.Fatalf("body %q, forwarded %q: %v", original, forwarded, err)
		}
	})
}

// runChunks gives a body to the reader in pieces. It returns what is forwarded and what follows the body.
func runChunks(b []byte, step int) (forwarded, rest []byte, ok bool) {
	var c chunks
	var buffer []byte
	for at := 0; at < len(b) && c.state != chunkDone; {
		n := min(step, len(b)-at)
		buffer = append(buffer, b[at:at+n]...)
		at += n
		out, in, ok := c.next(buffer)
		if !ok {
			return nil, nil, false
		}
		forwarded = append(forwarded, buffer[:out]...)
		buffer = append([]byte(nil), buffer[in:]...)
		rest = append(bytes.Clone(buffer), b[at:]...)
	}
	return forwarded, rest, c.state == chunkDone
}

func readChunks(b []byte) ([]byte, error) {
	text := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + string(b)
	request, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(request.Body)
}
