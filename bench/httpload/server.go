package httpload

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// body is what the server answers.
const body = "hello\n"

// Serve answers requests until the listener is closed: a server of net/http, as many pods have one, that does nothing
// but answer.
func Serve(l net.Listener) error {
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		_, _ = io.WriteString(w, body) // a client that is gone needs no answer
	})}
	return server.Serve(l)
}

// Idle opens connections, has one request answered on each, and leaves them open until the result is called.
func Idle(to netip.AddrPort, path string, connections int) (end func(), err error) {
	l := &load{Config: Config{To: to, Path: path, Connections: connections}, buffer: make([]byte, 64<<10),
		request: requestFor(to, path)}
	if err := l.open(); err != nil {
		l.close()
		return nil, err
	}
	return l.close, nil
}
