package httpproxy

import (
	"net/http"
	"strconv"
)

// reply is a response that the proxy makes itself.
type reply struct {
	status int
	body   string
	grpc   string // the status of gRPC that is sent instead
	close  bool
}

// replyTo is the reply to a message that is refused.
func replyTo(p problem) reply {
	return reply{status: int(p), body: http.StatusText(int(p)) + "\r\n", close: true}
}

// localReply is the reply in HTTP/1.minor. Responses to HEAD have no body.
func localReply(r reply, minor int, headRequest bool) []byte {
	contentType := "text/plain"
	if r.grpc != "" {
		contentType = "application/grpc"
	}
	b := make([]byte, 0, 256)
	if r.grpc != "" {
		b = append(b, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\ngrpc-status: "...)
		b = append(b, r.grpc...)
		b = append(b, "\r\ngrpc-message: "...)
		b = append(b, grpcMessage(r.grpc)...)
		r.body = ""
	} else {
		b = append(b, "HTTP/1.1 "...)
		b = strconv.AppendInt(b, int64(r.status), 10)
		b = append(b, ' ')
		b = append(b, http.StatusText(r.status)...)
		b = append(b, "\r\ncontent-length: "...)
		b = strconv.AppendInt(b, int64(len(r.body)), 10)
	}
	b = append(b, "\r\ncontent-type: "...)
	b = append(b, contentType...)
	switch {
	case r.close:
		b = append(b, "\r\nconnection: close"...)
	case minor == 0:
		b = append(b, "\r\nconnection: keep-alive"...)
	}
	b = append(b, "\r\n\r\n"...)
	if headRequest {
		return b
	}
	return append(b, r.body...)
}

func grpcMessage(status string) string {
	if status == grpcUnavailable {
		return "upstream connect error"
	}
	return "Access denied"
}

// recorded is the status that a record has.
func (r *reply) recorded() int {
	if r.grpc != "" {
		return http.StatusOK
	}
	return r.status
}
